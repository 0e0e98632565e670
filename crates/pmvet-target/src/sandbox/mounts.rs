//! The mounts of this machine, and how a private view replaces each.
//!
//! With all capabilities over the machine's own mounts, the whole tree is replaced: `/` becomes an overlay, and so does every file system
//! mounted below it. An ordinary user may not do that: the kernel hides what lies under a mount, and an overlay cannot copy a folder
//! whose owner has no number in the user's namespace. For such a user the tree stays as it is, read-only, and overlays lie on the
//! topmost folders that the user may write to.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatxFlags, access, statx};
use rustix::process::{getegid, geteuid};

/// One mount, as `/proc/self/mountinfo` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    id: u64,
    pub(super) at: PathBuf,
    pub(super) kind: String,
    pub(super) read_only: bool,
}

/// Parses the kernel's list. Unreadable lines are errors: a mount that was overlooked would not be private.
pub(super) fn parse(text: &[u8]) -> io::Result<Vec<Mount>> {
    let bad = |line: &[u8]| {
        io::Error::other(format!("cannot read this line of mountinfo: {}", String::from_utf8_lossy(line)))
    };
    text.split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
            let dash = fields.iter().position(|field| *field == b"-").ok_or_else(|| bad(line))?;
            let (Some(id), Some(at), Some(options), Some(kind)) =
                (fields.first(), fields.get(4), fields.get(5), fields.get(dash + 1))
            else {
                return Err(bad(line));
            };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok(Mount {
                id: text(id).parse().map_err(|_| bad(line))?,
                at: unescape(at).into(),
                kind: text(kind),
                read_only: options.split(|&b| b == b',').any(|option| option == b"ro"),
            })
        })
        .collect()
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescape(text: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match digits.filter(|_| first == b'\\').and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain)
}

/// The mounts that paths of the calling thread lead to, parents before children.
pub(super) fn reachable() -> io::Result<Vec<Mount>> {
    let mut mounts = parse(&std::fs::read("/proc/thread-self/mountinfo")?)?;
    mounts.retain(|mount| mount_id(&mount.at) == Some(mount.id));
    mounts.sort_by_key(|mount| mount.at.components().count());
    Ok(mounts)
}

/// Which mount a path leads to.
fn mount_id(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

impl Mount {
    /// A file system of the kernel's own, without data of the user's.
    pub(super) fn is_pseudo(&self) -> bool {
        const PSEUDO: [&str; 20] = [
            "autofs",
            "binfmt_misc",
            "bpf",
            "cgroup",
            "cgroup2",
            "configfs",
            "debugfs",
            "devpts",
            "devtmpfs",
            "efivarfs",
            "fusectl",
            "hugetlbfs",
            "mqueue",
            "nsfs",
            "proc",
            "pstore",
            "rpc_pipefs",
            "securityfs",
            "sysfs",
            "tracefs",
        ];
        PSEUDO.contains(&self.kind.as_str()) || ["/proc", "/sys"].iter().any(|top| self.at.starts_with(top))
    }
}

/// The topmost folders that the user may write to and that have no mounts below them: those that the search finds near the root, and
/// those on the way to `hints`. On that way also those below them that the kernel could not copy, since their owner or group is another, or
/// that of a folder on the way.
/// Parents come first.
pub(super) fn writable_tops(mounts: &[Mount], hints: &[PathBuf]) -> Vec<PathBuf> {
    let mut tops = BTreeSet::new();
    for mount in mounts.iter().filter(|mount| !mount.is_pseudo() && !mount.read_only) {
        search(&mount.at, mounts, &mut tops);
    }
    for hint in hints {
        let way: Vec<&Path> = hint.ancestors().filter(|way| is_top(way, mounts)).collect();
        for folder in way.into_iter().rev() {
            // What is below the overlay around it, down to itself, would be copied when something in it changes.
            let around = tops.iter().filter(|top| folder.starts_with(top)).max_by_key(|top| top.as_os_str().len());
            let needed =
                around.is_none_or(|top| folder.ancestors().take_while(|way| way != top).any(|way| !can_be_copied(way)));
            if needed {
                tops.insert(folder.to_owned());
            }
        }
    }
    tops.into_iter().collect()
}

/// The user and the group that the kernel shows, inside a user namespace, for everybody who is not in it: `nobody`.
const OVERFLOW_ID: u32 = 65_534;

/// Whether owner and group of a folder are the user's own. For `nobody` that is unknown, since others' folders look the
/// same.
fn can_be_copied(folder: &Path) -> bool {
    let own = (geteuid().as_raw(), getegid().as_raw());
    own.0 != OVERFLOW_ID
        && own.1 != OVERFLOW_ID
        && folder.metadata().is_ok_and(|found| (found.uid(), found.gid()) == own)
}

/// How many levels below the root of a file system are searched. Homes (`/home/name`) and data folders (`/srv/data/name`) are there.
const SEARCH_DEPTH: usize = 3;
/// How many folders are examined per file system.
const SEARCH_FOLDERS: usize = 2000;
/// Folders of the system itself, which are large and not the user's.
const SYSTEM: [&str; 12] = ["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "snap", "sys", "usr"];

fn search(start: &Path, mounts: &[Mount], tops: &mut BTreeSet<PathBuf>) {
    let mut queue = VecDeque::from([(start.to_owned(), 0)]);
    for _ in 0..SEARCH_FOLDERS {
        let Some((folder, depth)) = queue.pop_front() else { return };
        if is_top(&folder, mounts) {
            tops.insert(folder);
            continue;
        }
        if depth == SEARCH_DEPTH {
            continue;
        }
        let Ok(entries) = folder.read_dir() else { continue };
        let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let system = |name: &OsStr| folder == Path::new("/") && SYSTEM.iter().any(|known| name == *known);
        queue.extend(below.filter(|entry| !system(&entry.file_name())).map(|entry| (entry.path(), depth + 1)));
    }
}

fn is_top(folder: &Path, mounts: &[Mount]) -> bool {
    folder.is_dir() && is_writable(folder) && !mounts.iter().any(|m| m.at != folder && m.at.starts_with(folder))
}

pub(super) fn is_writable(folder: &Path) -> bool {
    access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Existing folders that words of a command line lead to: the folder itself, or the one that a file is or would be in.
pub(super) fn hints(words: impl Iterator<Item = OsString>) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    let variables = ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"].into_iter().filter_map(std::env::var_os);
    let current = std::env::current_dir().ok();
    let parts = words.flat_map(|word| {
        let split = |b: &u8| b" \t\n'\"=;|&<>()".contains(b);
        word.as_bytes().split(split).map(|part| OsString::from_vec(part.to_vec())).collect::<Vec<_>>()
    });
    for text in variables.chain(parts).filter(|text| text.as_bytes().contains(&b'/')) {
        let Some(path) = current.as_ref().map(|folder| folder.join(&text)) else { continue };
        found.extend(path.ancestors().take(3).find_map(|way| way.canonicalize().ok().filter(|way| way.is_dir())));
    }
    found.extend(current);
    found.into_iter().collect()
}

/// A path below another root.
pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    parts.fold(root.to_owned(), |full, part| full.join(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_understood() {
        let text = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                     36 35 98:0 /mnt1 /mnt/a\\040b\\134 ro,noatime master:1 shared:3 - ext3 /dev/root rw,errors=continue\n";
        let mounts = parse(text).unwrap();
        assert_eq!(mounts[0], Mount { id: 22, at: "/proc".into(), kind: "proc".into(), read_only: false });
        assert_eq!(mounts[1], Mount { id: 36, at: "/mnt/a b\\".into(), kind: "ext3".into(), read_only: true });
        assert!(mounts[0].is_pseudo() && !mounts[1].is_pseudo());
        for bad in ["22 27 0:21 / /proc rw", "x 27 0:21 / /proc rw - proc proc rw", "22 27 - proc"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn overlays_lie_on_the_topmost_writable_folders() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let (deep, mounted) = (home.join("a/b"), home.join("m"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::create_dir_all(&mounted).unwrap();
        let mount = Mount { id: 1, at: mounted.clone(), kind: "ext4".into(), read_only: false };
        // A mount below keeps a folder from being a top; its own root is one.
        assert!(!is_top(&home, std::slice::from_ref(&mount)) && is_top(&home, &[]));
        let tops = writable_tops(&[mount], std::slice::from_ref(&deep));
        assert!(tops.contains(&home.join("a")) && tops.contains(&mounted), "{tops:?}");
    }

    #[test]
    fn words_of_a_command_line_name_folders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let found = hints([OsString::from(format!("cp --to={}/pool.new 'x'", path.display()))].into_iter());
        assert!(found.contains(&path), "{found:?}");
    }
}
