//! Where events happen: instructions, and the call paths that lead to them.

use crate::ids::{ContextId, ModuleId, SiteId};

/// An instruction of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Its address in the process that reported it.
    pub pc: u64,
    /// The module it is in; none for generated code.
    pub module: ModuleId,
}

/// A node of the calling-context tree: the path of `parent`, and one more call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The call path of the function that calls.
    pub parent: ContextId,
    /// The call instruction.
    pub call: SiteId,
}

/// Resolves the ids that events carry. A trace file and a running target both do.
pub trait Places {
    /// Nothing if the id is unknown, or not defined yet.
    fn site(&self, id: SiteId) -> Option<Site>;
    /// Nothing if the id is unknown, not defined yet or the root.
    fn context(&self, id: ContextId) -> Option<Context>;

    /// The call instructions on the path to `context`, innermost first.
    fn calls(&self, context: ContextId) -> Vec<SiteId> {
        let mut calls = Vec::new();
        let mut id = context;
        // A child's number is always greater than its parent's, so that even a damaged tree has an end.
        while let Some(node) = self.context(id).filter(|node| node.parent < id) {
            calls.push(node.call);
            id = node.parent;
        }
        calls
    }
}
