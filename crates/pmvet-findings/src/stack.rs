//! Frames: which ones are the user's, and how to write them.

use std::{ffi::OsStr, fmt, path::Path};

use crate::finding::{Frame, Place};

/// Folders of code that the user did not write and does not want to read.
const LIBRARY_FOLDERS: &[&str] =
    &["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/lib/", "/usr/include/", "/usr/src/", "/rustc/"];

/// The outermost functions of every stack.
const BELOW_MAIN: &[&str] = &[
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "__libc_start_main_impl",
    "start_thread",
    "clone",
    "clone3",
    "__clone3",
];

impl Frame {
    /// Whether it belongs to the program, and not to a library or the code that calls `main`.
    pub fn is_user(&self) -> bool {
        let function = self.function.as_deref().unwrap_or_default();
        if BELOW_MAIN.contains(&function) || function.starts_with("std::rt::") || function.starts_with("core::ops::") {
            return false;
        }
        if self.module.as_deref().is_some_and(is_pm_library) {
            return false;
        }
        match (&self.file, &self.module) {
            (Some(file), _) if file.is_absolute() => !is_library(file),
            (_, Some(module)) => !is_library(module),
            (Some(_), None) => true,
            // Generated code, or the kernel's.
            (None, None) => false,
        }
    }

    /// Whether it has a line of source.
    pub fn has_line(&self) -> bool {
        self.file.is_some() && self.line.is_some_and(|line| line > 0)
    }
}

/// Whether a module is one of PMDK's libraries. Their file paths do not show that, since debug information names the folder in which the
/// distribution built them.
pub fn is_pm_library(module: &Path) -> bool {
    let name = module.file_name().unwrap_or_default().to_string_lossy();
    ["libpmem", "librpmem", "libvmem", "libmemkind"].iter().any(|prefix| name.starts_with(prefix))
        && (name.ends_with(".so") || name.contains(".so."))
}

/// Whether a file is of a library that the system or a package manager has installed.
pub fn is_library(path: &Path) -> bool {
    let path = path.to_string_lossy();
    // Rust's own sources, where they are installed, and those of crates.
    let elsewhere = ["/rustlib/src/rust/", "/.cargo/registry/"];
    LIBRARY_FOLDERS.iter().any(|folder| path.starts_with(folder)) || elsewhere.iter().any(|part| path.contains(part))
}

/// The user's frames, or all if there are none.
pub fn user_frames(stack: &[Frame]) -> Vec<&Frame> {
    let user: Vec<&Frame> = stack.iter().filter(|frame| frame.is_user()).collect();
    if user.is_empty() { stack.iter().collect() } else { user }
}

/// Whether the program's `main` has returned: the stack has none of its frames left.
pub fn main_has_returned(stack: &[Frame]) -> bool {
    let calls_main = |frame: &Frame| frame.function.as_deref().is_some_and(|f| f.starts_with("__libc_start"));
    stack.iter().any(calls_main) && !stack.iter().any(Frame::is_user)
}

impl Place {
    /// The frame that sentences name: like [`Place::frame`], but never a lambda.
    pub fn naming_frame(&self) -> Option<&Frame> {
        let at = user_frame(&self.stack).unwrap_or(0);
        self.stack.get(naming_frame(&self.stack, at))
    }

    /// The frame whose line is shown: the innermost of the user's frames that does more than flush or copy for its caller.
    pub fn frame(&self) -> Option<&Frame> {
        user_frame(&self.stack).and_then(|i| self.stack.get(i)).or(self.stack.first())
    }

    /// Whether a function of another module did it for the shown line, other than by copying what that line passed.
    pub fn is_in_other_module(&self) -> bool {
        let modules = |caller: &Frame| self.stack.first().is_some_and(|callee| callee.module != caller.module);
        self.library_call().is_some() && self.frame().is_some_and(modules)
    }

    /// The library function that the shown line has called, if it does more than flush or copy for it.
    pub fn library_call(&self) -> Option<&str> {
        const HELPERS: &[&str] = &["persist", "flush", "drain", "memcpy", "memmove", "memset"];
        let callee = self.stack.get(user_frame(&self.stack)?.checked_sub(1)?)?;
        let is_called = !callee.is_user() && !callee.inlined;
        let name = callee.function.as_deref().filter(|_| is_called)?;
        (!HELPERS.iter().any(|helper| name.contains(helper))).then_some(name)
    }
}

/// The innermost frame of the user's own code that decides something: not a library's, nor a helper that only wraps
/// an instruction. If there are only helpers, the outermost of them.
pub fn user_frame(stack: &[Frame]) -> Option<usize> {
    let own = |i: &usize| stack[*i].is_user() && !is_intrinsic(&stack[*i]);
    let is_setter = |i: usize| stack.get(i + 1).is_some_and(|caller| is_setter(&stack[i], caller));
    let decides = |i: &usize| !stack[*i].wrapper && !is_helper(&stack[*i]) && !is_setter(*i);
    let mut frames = 0..stack.len();
    let first = frames.clone().filter(own).find(decides);
    first.or_else(|| frames.clone().rfind(own)).or_else(|| frames.rfind(|&i| stack[i].is_user()))
}

/// How many outermost frames two stacks share, including the innermost common function, which may be at a different place in each.
pub fn shared_frames(one: &[Frame], other: &[Frame]) -> usize {
    let place = |frame: &Frame| (frame.module.clone(), frame.function.clone(), frame.offset);
    let same = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| place(a) == place(b)).count();
    let next = |stack: &[Frame]| stack.len().checked_sub(same + 1).and_then(|at| stack[at].function.clone());
    same + usize::from(next(one).is_some() && next(one) == next(other))
}

/// The index of the frame that a sentence names for this one: itself or, for a C++ lambda, the function around it.
pub fn naming_frame(stack: &[Frame], at: usize) -> usize {
    let is_lambda =
        |frame: &Frame| frame.function.as_deref().is_some_and(|f| f == "operator()" || f.contains("lambda"));
    let around = |i: &usize| stack[*i].is_user() && !is_lambda(&stack[*i]);
    match stack.get(at) {
        Some(frame) if is_lambda(frame) => (at..stack.len()).find(around).unwrap_or(at),
        _ => at,
    }
}

/// A compiler's name for a single instruction.
fn is_intrinsic(frame: &Frame) -> bool {
    let function = frame.function.as_deref().unwrap_or_default();
    let in_header =
        frame.file.as_deref().and_then(Path::file_name).is_some_and(|n| n.to_string_lossy().ends_with("intrin.h"));
    in_header || function.starts_with("_mm") || function.contains("core_arch::")
}

/// Whether a function, by its name, only persists or copies data on behalf of its caller.
fn is_helper(frame: &Frame) -> bool {
    const WORDS: &[&str] = &[
        "persist",
        "flush",
        "fence",
        "drain",
        "clwb",
        "clflush",
        "clflushopt",
        "sfence",
        "mfence",
        "pcommit",
        "memcpy",
        "memmove",
        "memset",
        "memzero",
    ];
    // A closure has no name of its own; the function around it has.
    if frame.inlined && frame.function.as_deref().is_some_and(|f| f.ends_with('}') && f.contains("{closure")) {
        return true;
    }
    // `zoo_persist`, `pm::Pool::flush_range`, `cacheLineFlush`; not `flusher`.
    words(last_name(frame)).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// Whether a function, by its name, only stores what its caller passes: `store`, `pm_write`, `operator=`. Most such names count only for a
/// function of another file than the caller's: within one file, `write` may well be the function that decides.
fn is_setter(frame: &Frame, caller: &Frame) -> bool {
    const WORDS: &[&str] = &["store", "stream", "write", "copy", "set", "assign", "exchange", "cas"];
    const ATOMIC: &[&str] = &["exchange", "cas"];
    const ASSIGNMENTS: &[&str] = &["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"];
    let mut name = words(last_name(frame));
    name.retain(|word| !["nt", "nontemporal", "volatile", "unaligned"].contains(&word.as_str()));
    let ends_in = |words: &[&str]| name.len() <= 2 && name.last().is_some_and(|word| words.contains(&word.as_str()));
    let assigns = last_name(frame).strip_prefix("operator").is_some_and(|name| ASSIGNMENTS.contains(&name));
    // A template that wraps a variable, such as `p<int>`.
    let wraps = frame.function.as_deref().is_some_and(|function| function.contains(">::operator"));
    let is_other_file = caller.file.is_some() && caller.file != frame.file;
    caller.is_user() && (ends_in(ATOMIC) || assigns && wraps || is_other_file && (assigns || ends_in(WORDS)))
}

/// The function's name without its path, parameters and type arguments. A lambda has the name of the function around it.
pub fn last_name(frame: &Frame) -> &str {
    let function = frame.function.as_deref().unwrap_or_default();
    if let Some(at) = function.rfind("::operator").filter(|&at| !function[at..].starts_with("::operator()")) {
        return without_parameters(&function[at + "::".len()..]);
    }
    let path = match function.contains("{lambda") {
        true => function.split('(').next().unwrap_or_default(),
        false => without_parameters(function),
    };
    let path = without_arguments(without_result_type(path));
    let begin = path.rmatch_indices("::").map(|(at, colons)| at + colons.len()).find(|&at| !is_in_arguments(path, at));
    &path[begin.unwrap_or(0)..]
}

/// Without the type arguments at the end, those of C++ and those of Rust (`::<T>`).
fn without_arguments(path: &str) -> &str {
    let Some(inner) = path.strip_suffix('>') else { return path };
    match inner.rmatch_indices('<').map(|(at, _)| at).find(|&at| !is_in_arguments(path, at)) {
        Some(at) if at > 0 => path[..at].trim_end_matches(':'),
        _ => path,
    }
}

/// Whether a place of a name is inside of type arguments.
fn is_in_arguments(path: &str, at: usize) -> bool {
    let opened = path[..at].matches('<').count();
    let closed = path[..at].matches('>').count() - path[..at].matches("->").count();
    opened > closed
}

/// The parts of an identifier, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() && lower {
            words.push(String::new());
        }
        lower = c.is_lowercase();
        if c.is_alphanumeric() {
            words.last_mut().into_iter().for_each(|word| word.extend(c.to_lowercase()));
        }
    }
    words
}

/// `insert (list.c:42)`, or as much of that as is known; never empty.
impl Frame {
    /// The function without what makes C++ names long: parameters, and long type arguments.
    pub fn short_function(&self) -> Option<String> {
        self.function.as_deref().map(shortened)
    }
}

/// Type arguments with more characters than this are left out.
const SHORT_ARGUMENTS: usize = 12;

fn shortened(name: &str) -> String {
    let name = without_result_type(without_parameters(name));
    let mut short = String::new();
    let mut rest = name;
    while let Some((before, arguments, after)) = type_arguments(rest) {
        short.push_str(before);
        // Rust's `<Type as Trait>::method` begins with them.
        let keep = arguments.chars().count() <= SHORT_ARGUMENTS || short == "<";
        short.push_str(if keep { arguments } else { "…" });
        short.push('>');
        rest = after;
    }
    short + rest
}

/// The name without the parameter list at its end and what may follow it: `const`, the number of a clone. Earlier parentheses belong to the
/// name, as in `(anonymous namespace)` and `operator()`.
fn without_parameters(name: &str) -> &str {
    let Some(end) = name.rfind(')') else { return name };
    let mut depth = 0_u32;
    for (at, c) in name[..=end].char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let is_name = at == 0
                || name[..at].ends_with("operator")
                || name[..at].ends_with(':')
                || name[end..].contains([':', '}']);
            return if is_name { name } else { &name[..at] };
        }
    }
    name
}

/// The name without the result type, which precedes the names of function template instances.
fn without_result_type(name: &str) -> &str {
    let mut depth = 0_u32;
    for (at, c) in name.char_indices().rev() {
        match c {
            '>' | ')' | '}' => depth += 1,
            '<' | '(' | '{' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => {
                let own = &name[at + 1..];
                let is_template = own.contains('<');
                return if is_template && !name[..at].contains("operator") { own } else { name };
            }
            _ => {}
        }
    }
    name
}

/// Splits at the first type arguments: the text up to and with `<`, the arguments, and the text after `>`.
fn type_arguments(name: &str) -> Option<(&str, &str, &str)> {
    let start = name
        .match_indices('<')
        .map(|(at, _)| at)
        .find(|&at| !name[..at].trim_end_matches('<').ends_with("operator"))?;
    let mut depth = 0_u32;
    for (at, c) in name[start..].char_indices() {
        match c {
            '<' => depth += 1,
            // The `>` of an arrow, as in `fn() -> T`, does not count.
            '>' if !name[..start + at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&name[..=start], &name[start + 1..start + at], &name[start + at + 1..]));
        }
    }
    None
}

/// As `{:#}` with the whole name of the function.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = if f.alternate() { self.function.clone() } else { self.short_function() };
        match (&function, self.function_offset) {
            (Some(function), Some(offset)) if !self.has_line() => write!(f, "{function}+{offset:#x}")?,
            (Some(function), _) => f.write_str(function)?,
            (None, _) if self.has_line() => f.write_str("?")?,
            (None, _) => {}
        }
        let name = |path: &Path| path.file_name().unwrap_or(OsStr::new("?")).display().to_string();
        match (&self.file, self.line, &self.module) {
            (Some(file), Some(line), _) if line > 0 => write!(f, " ({}:{line})", name(file)),
            (_, _, Some(module)) if self.function.is_some() => write!(f, " ({})", name(module)),
            (_, _, Some(module)) => write!(f, "{}+{:#x}", name(module), self.offset),
            _ if self.function.is_some() => Ok(()),
            _ => write!(f, "{:#x}", self.offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened() {
        for (long, short) in [
            ("insert", "insert"),
            ("CCEH::CCEH(unsigned long)", "CCEH::CCEH"),
            ("Tree::Tree(void (*)(unsigned long, Key&))", "Tree::Tree"),
            ("list<int>::push(int) const", "list<int>::push"),
            ("pm::map<std::basic_string<char>, pm::ptr<node<int> > >::recover(bool)", "pm::map<…>::recover"),
            (
                "f<std::vector<unsigned long>>(int)::{lambda(int)#1}::operator()(int) const",
                "f<…>(int)::{lambda(int)#1}::operator()",
            ),
            ("run(int)::{lambda()#1}", "run(int)::{lambda()#1}"),
            ("(anonymous namespace)::run(char**)", "(anonymous namespace)::run"),
            ("operator<(Key const&, Key const&)", "operator<"),
            ("unsigned long& pm::tx<log>::add<unsigned long>(unsigned long&)", "pm::tx<log>::add<…>"),
            ("void run<int>(int) [clone .cold]", "run<int>"),
            ("Key::operator unsigned long<int>() const", "Key::operator unsigned long<int>"),
            ("Key::operator<<(int)", "Key::operator<<"),
            ("A::operator()", "A::operator()"),
            ("<alloc::vec::Vec<T> as core::ops::Drop>::drop", "<alloc::vec::Vec<T> as core::ops::Drop>::drop"),
            ("map<fn(u8) -> alloc::string::String>", "map<…>"),
            ("broken<(", "broken<("),
            ("broken>)", "broken>)"),
            ("", ""),
        ] {
            assert_eq!(shortened(long), short, "{long}");
        }
    }

    fn frame(function: &str, file: Option<&str>, module: &str) -> Frame {
        Frame {
            function: Some(function.into()),
            function_offset: Some(0x1f),
            file: file.map(Into::into),
            line: file.map(|_| 42),
            module: Some(module.into()),
            offset: 0x1234,
            ..Frame::default()
        }
    }

    #[test]
    fn libraries_are_left_out() {
        let stack = vec![
            frame("pmem_persist", None, "/usr/lib/x86_64-linux-gnu/libpmem.so.1"),
            frame("D_RW", Some("/usr/include/libpmemobj/types.h"), "/home/me/list"),
            frame("insert", Some("/home/me/list.c"), "/home/me/list"),
            frame("main", Some("list.c"), "/home/me/list"),
            frame("__libc_start_main", None, "/lib/x86_64-linux-gnu/libc.so.6"),
        ];
        let names: Vec<_> = user_frames(&stack).iter().map(|f| f.to_string()).collect();
        assert_eq!(names, ["insert (list.c:42)", "main (list.c:42)"]);
        assert_eq!(user_frames(&stack[..1]).len(), 1, "a stack of libraries alone is shown whole");
    }

    #[test]
    fn a_main_that_has_returned_is_told() {
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        let exit = vec![frame("_exit", Some("./posix/_exit.c"), libc), frame("__libc_start_call_main", None, libc)];
        assert!(main_has_returned(&exit));
        assert!(!main_has_returned(&exit[..1]), "it is not known");
        let called = [&exit[..1], &[frame("main", Some("list.c"), "/home/me/list")], &exit[1..]].concat();
        assert!(!main_has_returned(&called));
    }

    #[test]
    fn pm_libraries_are_not_the_users_wherever_they_were_built() {
        let library = "/usr/lib/x86_64-linux-gnu/libpmemobj.so.1";
        let inlined =
            frame("mm512_stream_si512", Some("/build/pmdk-1.12.1/src/libpmem2/x86_64/memset_nt_avx512f.h"), library);
        let entry = frame("pmemobj_tx_zalloc", Some("/build/pmdk-1.12.1/src/libpmemobj/tx.c"), library);
        let stack = vec![inlined, entry, frame("push", Some("/home/me/queue.c"), "/home/me/libpmemqueue")];
        assert_eq!(user_frame(&stack), Some(2));
    }

    #[test]
    fn frames_without_lines() {
        assert_eq!(frame("f", None, "/home/me/list").to_string(), "f+0x1f (list)");
        let bare = Frame { module: Some("/home/me/list".into()), offset: 0x1234, ..Frame::default() };
        assert_eq!(bare.to_string(), "list+0x1234");
        assert_eq!(Frame { offset: 7, ..Frame::default() }.to_string(), "0x7");
    }

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(words("zoo_persist"), ["zoo", "persist"]);
        assert_eq!(words("cacheLineFlush"), ["cache", "line", "flush"]);
        assert_eq!(words("flusher"), ["flusher"]);
    }

    #[test]
    fn the_name_of_a_function_comes_without_types() {
        for (function, name) in [
            ("insert", "insert"),
            ("zoo::list::push(int) const", "push"),
            ("p<node*>::persist", "persist"),
            ("p<node*>::operator=", "operator="),
            ("pm::p<std::vector<int> >::operator+=(int const&)", "operator+="),
            ("void persist<node>(node*)", "persist"),
            ("pm::Pool::flush_range::<u64>", "flush_range"),
            ("<pool::Pool as pm::Store>::flush", "flush"),
            ("run(int)::{lambda()#1}::operator()() const", "run"),
            ("pm::insert::{{closure}}", "{{closure}}"),
        ] {
            assert_eq!(last_name(&plain(function, "a.cpp", "p")), name);
        }
    }

    #[test]
    fn the_caller_of_an_assignment_operator_decides() {
        let called = |function, file| user_frame(&[plain(function, file, "p"), plain("insert", "a.cpp", "p")]);
        assert_eq!(called("p<int>::operator=", "a.cpp"), Some(1));
        assert_eq!(called("p<node*>::operator+=(node* const&)", "a.cpp"), Some(1));
        assert_eq!(called("table::operator=(table const&)", "a.cpp"), Some(0), "it may decide anything");
        assert_eq!(called("list<int>::operator<", "a.cpp"), Some(0));
        assert_eq!(called("operator=", "pool_ptr.hpp"), Some(1), "debug information may lack the class");
        assert_eq!(called("operator==", "pool_ptr.hpp"), Some(0));
    }

    fn plain(function: &str, file: &str, module: &str) -> Frame {
        Frame {
            function: Some(function.into()),
            file: Some(file.into()),
            module: Some(module.into()),
            ..Frame::default()
        }
    }

    #[test]
    fn libraries_intrinsics_and_helpers_are_skipped() {
        let stack = vec![
            plain("_mm_clwb", "/usr/lib/gcc/clwbintrin.h", "/bin/prog"),
            plain("zoo_flush", "zoo.h", "/bin/prog"),
            plain("zoo_persist", "zoo.h", "/bin/prog"),
            plain("put", "plist.c", "/bin/prog"),
            plain("main", "plist.c", "/bin/prog"),
        ];
        assert_eq!(user_frame(&stack), Some(3));
        let stack = vec![
            plain("memmove_nodrain_avx512f", "", "/usr/lib/libpmem.so.1"),
            plain("pmemobj_memcpy_persist", "", "/usr/lib/libpmemobj.so.1"),
            plain("append", "log.c", "/bin/prog"),
        ];
        assert_eq!(user_frame(&stack), Some(2));
        let rust = vec![
            plain("core::ptr::write_volatile::<u64>", "/rustc/abc/library/core/src/ptr/mod.rs", "/bin/prog"),
            plain("pm::Pool::flush_range", "pool.rs", "/bin/prog"),
            plain("pm::insert", "map.rs", "/bin/prog"),
        ];
        assert_eq!(user_frame(&rust), Some(2));
        let installed = "/home/u/.rustup/toolchains/stable/lib/rustlib/src/rust/library/core/src/sync/atomic.rs";
        let atomic = vec![plain("atomic_store::<u64>", installed, "/bin/prog"), plain("put", "map.rs", "/bin/prog")];
        assert_eq!(user_frame(&atomic), Some(1));
    }

    #[test]
    fn a_stack_of_helpers_alone_gives_the_outermost() {
        let stack = vec![plain("_mm_clwb", "clwbintrin.h", "/bin/prog"), plain("flush_all", "a.c", "/bin/prog")];
        assert_eq!(user_frame(&stack), Some(1));
        assert_eq!(user_frame(&[plain("memcpy", "", "/lib/libc.so.6")]), None);
        assert_eq!(user_frame(&[plain("flusher_main", "a.c", "p"), plain("main", "a.c", "p")]), Some(0));
    }
}
