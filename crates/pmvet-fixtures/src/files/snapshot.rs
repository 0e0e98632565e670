//! Everything that can be known about a tree of files without changing it, and what differs between two looks.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fmt::Debug;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A tree of files at one moment. Times of access are left out, since to look changes them.
#[derive(Debug)]
pub struct Snapshot {
    root: PathBuf,
    files: BTreeMap<PathBuf, Entry>,
    /// Lines of /proc/self/mountinfo that name the tree.
    mounts: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    device: u64,
    inode: u64,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// The bytes of a file, or where a symbolic link leads.
    content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Snapshot {
    /// Looks at a folder and all that is below it.
    pub fn new(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        look(root, Path::new(""), &mut files);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root_text = root.to_str().unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(root_text)).map(String::from).collect();
        Self { root: root.into(), files, mounts }
    }

    /// What has changed since then, by the operation whose folder it is in; none for files outside of those.
    pub fn changes(&self) -> BTreeMap<Option<String>, Vec<String>> {
        let now = Self::new(&self.root);
        let mut changes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut add = |path: &Path, what: &dyn Fn(&str) -> String| {
            let (operation, rest) = operation_of(path);
            let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
            changes.entry(operation.map(String::from)).or_default().push(what(&rest.display().to_string()));
        };
        for path in self.files.keys().filter(|path| !now.files.contains_key(*path)) {
            add(path, &|path| format!("{path} is gone"));
        }
        for path in now.files.keys().filter(|path| !self.files.contains_key(*path)) {
            add(path, &|path| format!("{path} is new"));
        }
        for (path, before) in &self.files {
            for (what, how) in now.files.get(path).into_iter().flat_map(|now| before.differences(now)) {
                add(path, &|path| format!("{what} of {path} changed{how}"));
            }
        }
        for line in now.mounts.iter().filter(|line| !self.mounts.contains(line)) {
            add(Path::new(""), &|_| format!("a new mount: {line}"));
        }
        for changes in changes.values_mut() {
            // Everything changes a time; what else there is says more.
            changes.sort_by_key(|what| what.starts_with("mtime") || what.starts_with("ctime"));
        }
        changes
    }
}

impl Entry {
    /// What differs, and how.
    fn differences(&self, now: &Self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if self.content != now.content {
            found.push(("content", String::new()));
        }
        let mut compare = |what: &'static str, before: &dyn Debug, after: &dyn Debug| {
            let (before, after) = (format!("{before:?}"), format!("{after:?}"));
            if before != after {
                found.push((what, format!(" from {before} to {after}")));
            }
        };
        compare("device", &self.device, &now.device);
        compare("inode", &self.inode, &now.inode);
        compare("mode", &format_args!("{:o}", self.mode), &format_args!("{:o}", now.mode));
        compare("owner", &self.owner, &now.owner);
        compare("number of links", &self.links, &now.links);
        compare("size", &self.size, &now.size);
        compare("extended attributes", &shown(&self.attributes), &shown(&now.attributes));
        compare("mtime", &self.modified, &now.modified);
        compare("ctime", &self.changed, &now.changed);
        found
    }
}

fn shown(attributes: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    attributes.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect()
}

fn look(root: &Path, relative: &Path, files: &mut BTreeMap<PathBuf, Entry>) {
    let path = if relative.as_os_str().is_empty() { root.to_path_buf() } else { root.join(relative) };
    let found = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let kind = found.file_type();
    let content = if kind.is_symlink() {
        fs::read_link(&path).unwrap().into_os_string().as_bytes().to_vec()
    } else if kind.is_file() {
        fs::read(&path).unwrap()
    } else {
        assert!(kind.is_dir() || kind.is_fifo() || kind.is_socket(), "{} is a device", path.display());
        Vec::new()
    };
    let entry = Entry {
        device: found.dev(),
        inode: found.ino(),
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        links: found.nlink(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
        content,
        attributes: attributes(&path),
    };
    files.insert(relative.into(), entry);
    if kind.is_dir() {
        for file in fs::read_dir(&path).unwrap() {
            look(root, &relative.join(file.unwrap().file_name()), files);
        }
    }
}

/// The extended attributes of a file, or of a link itself. None where the file system has none.
fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut names = vec![0_u8; 4096];
    // SAFETY: the path ends with 0, and the buffer is as long as it says.
    let length = unsafe { libc::llistxattr(name.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    names.truncate(length.max(0) as usize);
    let mut found = BTreeMap::new();
    for attribute in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 4096];
        let key = CString::new(attribute).unwrap();
        // SAFETY: both names end with 0, and the buffer is as long as it says.
        let length = unsafe { libc::lgetxattr(name.as_ptr(), key.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        value.truncate(length.max(0) as usize);
        found.insert(attribute.to_vec(), value);
    }
    found
}

/// The operation whose folder a path is in, and the rest of the path.
fn operation_of(path: &Path) -> (Option<&str>, &Path) {
    let mut parts = path.iter();
    match (parts.next(), parts.next()) {
        (Some(folder), Some(operation)) if folder == OsStr::new("folder") => (operation.to_str(), parts.as_path()),
        _ => (None, path),
    }
}
