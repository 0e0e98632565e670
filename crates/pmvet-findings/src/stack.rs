//! Frames: which are the user's, and how one is written.

use std::{ffi::OsStr, fmt, path::Path};

use crate::finding::{Frame, Place};

/// Folders of code that the user did not write and does not want to read.
const LIBRARY_FOLDERS: &[&str] =
    &["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/lib/", "/usr/include/", "/usr/src/", "/rustc/"];

/// Functions that every stack of a program ends in.
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
    /// Whether it belongs to the program, rather than to a library or to what calls `main`.
    pub fn is_user(&self) -> bool {
        let function = self.function.as_deref().unwrap_or_default();
        if BELOW_MAIN.contains(&function) || function.starts_with("std::rt::") || function.starts_with("core::ops::") {
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

fn is_library(path: &Path) -> bool {
    let path = path.to_string_lossy();
    LIBRARY_FOLDERS.iter().any(|folder| path.starts_with(folder)) || path.contains("/.cargo/registry/")
}

/// The user's frames, or all if there are none.
pub fn user_frames(stack: &[Frame]) -> Vec<&Frame> {
    let user: Vec<&Frame> = stack.iter().filter(|frame| frame.is_user()).collect();
    if user.is_empty() { stack.iter().collect() } else { user }
}

impl Place {
    /// The frame whose line is shown: the innermost of the user's.
    pub fn frame(&self) -> Option<&Frame> {
        self.stack.iter().find(|frame| frame.is_user()).or(self.stack.first())
    }
}

/// `insert (list.c:42)`, or as much of that as is known; never empty.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.function, self.function_offset) {
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
    fn frames_without_lines() {
        assert_eq!(frame("f", None, "/home/me/list").to_string(), "f+0x1f (list)");
        let bare = Frame { module: Some("/home/me/list".into()), offset: 0x1234, ..Frame::default() };
        assert_eq!(bare.to_string(), "list+0x1234");
        assert_eq!(Frame { offset: 7, ..Frame::default() }.to_string(), "0x7");
    }
}
