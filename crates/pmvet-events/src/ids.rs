//! Small numbers that identify things. All are unique over a whole run, across its threads and processes.

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// A thread, numbered from 1 in the order of creation. Unlike an OS thread id, it is never reused.
    ThreadId,
    /// An instruction of the target. 0: unknown.
    SiteId,
    /// A call path: a node of the calling-context tree. 0: unknown; 1: the root, a thread's outermost function.
    ContextId,
    /// A PM file, numbered from 1 in the order in which the target touched them. 0: none.
    FileId,
    /// A loaded executable or library. 0: none (generated code).
    ModuleId,
}
