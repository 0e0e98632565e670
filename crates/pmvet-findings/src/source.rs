//! The lines of source that frames name.
//!
//! Debug information holds paths of the machine that compiled the program. So a path is tried as it is, from each root
//! (the working directory, as a rule), and then by its end: `/build/x/src/list.c` is `src/list.c` below a root.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use crate::{expression, finding::Frame};

/// Larger files are not taken for source.
const MAX_FILE: u64 = 16 << 20;
/// How many files below the roots are indexed, and how deep.
const MAX_FILES: usize = 200_000;
const MAX_DEPTH: usize = 16;
const SKIPPED_FOLDERS: &[&str] = &["target", "node_modules", "build"];

/// Keyed by `OsString`, since a `PathBuf` is slow to hash.
type Cache = HashMap<OsString, Option<Arc<SourceFile>>>;

/// Finds files once and keeps them.
#[derive(Debug, Default)]
pub struct Sources {
    roots: Vec<PathBuf>,
    /// By the path as recorded; nothing if there is no such file.
    files: Mutex<Cache>,
    /// All files below the roots, by name.
    index: OnceLock<HashMap<OsString, Vec<PathBuf>>>,
}

/// The text of a source file. Bytes that are not UTF-8 are replaced.
#[derive(Debug)]
pub struct SourceFile {
    /// Where it was found.
    pub path: PathBuf,
    text: String,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl Sources {
    /// Also looks below these folders.
    pub fn new(roots: impl IntoIterator<Item = PathBuf>) -> Self {
        Sources { roots: roots.into_iter().collect(), ..Sources::default() }
    }

    /// Sources with these texts only.
    pub fn in_memory<P: Into<PathBuf>, T: Into<String>>(texts: impl IntoIterator<Item = (P, T)>) -> Self {
        let file = |(path, text): (P, T)| {
            let path = path.into();
            (path.clone().into_os_string(), Some(Arc::new(SourceFile::new(path, text.into()))))
        };
        Sources { files: Mutex::new(texts.into_iter().map(file).collect()), ..Sources::default() }
    }

    /// Also counts paths below this folder as the user's own.
    pub fn with_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.roots.push(root.into());
        self
    }

    /// The file that the compiler knew under this path.
    pub fn file(&self, recorded: &Path) -> Option<Arc<SourceFile>> {
        if let Some(known) = self.cache().get(recorded.as_os_str()) {
            return known.clone();
        }
        let found = self.find(recorded).and_then(SourceFile::read).map(Arc::new);
        self.cache().insert(recorded.into(), found.clone());
        found
    }

    /// The path relative to the root it is below, for reports that leave this machine; nothing if it is below none.
    pub fn relative(&self, recorded: &Path) -> Option<PathBuf> {
        let found = self.file(recorded).map(|file| file.path.clone());
        let path = found.as_deref().unwrap_or(recorded);
        if path.is_relative() {
            return is_plain(path).then(|| path.into());
        }
        self.roots.iter().find_map(|root| Some(path.strip_prefix(root).ok()?.to_path_buf())).filter(|p| is_plain(p))
    }

    /// What the line of a frame stores to, as the source names it.
    pub fn stored_at(&self, frame: &Frame) -> Option<String> {
        expression::stored(self.file(frame.file.as_deref()?)?.line(frame.line?)?, frame.column)
    }

    /// Like [`Sources::stored_at`], but also plain names that look like local variables.
    pub fn assigned_at(&self, frame: &Frame) -> Option<String> {
        let file = self.file(frame.file.as_deref()?)?;
        let line = file.line(frame.line?)?;
        expression::stored(line, frame.column).or_else(|| expression::assigned_name(line))
    }

    /// Whether the line of a frame only computes a value, and whoever calls its function stores it.
    pub fn only_computes_at(&self, frame: &Frame) -> bool {
        let line = || Some(expression::only_computes(self.file(frame.file.as_deref()?)?.line(frame.line?)?));
        line().unwrap_or(false)
    }

    /// The lock that the line of a frame takes, as the source names it.
    pub fn locked_at(&self, frame: &Frame) -> Option<String> {
        expression::locked(self.file(frame.file.as_deref()?)?.line(frame.line?)?)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, recorded: &Path) -> Option<PathBuf> {
        if recorded.is_absolute() && recorded.is_file() {
            return Some(recorded.into());
        }
        let direct = self.roots.iter().map(|root| root.join(recorded)).find(|path| path.is_file());
        direct.or_else(|| self.by_suffix(recorded))
    }

    /// The file below the roots that shares the most trailing components with the path; nothing if two share equally many.
    fn by_suffix(&self, recorded: &Path) -> Option<PathBuf> {
        let index = self.index.get_or_init(|| index(&self.roots));
        let candidates = index.get(recorded.file_name()?)?;
        let common = |path: &Path| {
            let pairs = path.components().rev().zip(recorded.components().rev());
            pairs.take_while(|(a, b)| a == b && matches!(a, Component::Normal(_))).count()
        };
        let best = candidates.iter().map(|path| common(path)).max()?;
        let mut equal = candidates.iter().filter(|path| common(path) == best);
        let found = equal.next()?;
        equal.next().is_none().then(|| found.clone())
    }
}

impl SourceFile {
    fn new(path: PathBuf, text: String) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        SourceFile { path, text, starts }
    }

    fn read(path: PathBuf) -> Option<Self> {
        // Debug information can name anything, so refuse devices and pipes.
        let meta = fs::metadata(&path).ok().filter(|meta| meta.is_file() && meta.len() <= MAX_FILE)?;
        let mut bytes = Vec::with_capacity(meta.len() as usize);
        std::io::Read::read_to_end(&mut std::io::Read::take(fs::File::open(&path).ok()?, MAX_FILE), &mut bytes).ok()?;
        Some(Self::new(path, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The line, from 1, without its end.
    pub fn line(&self, number: u32) -> Option<&str> {
        let index = (number as usize).checked_sub(1)?;
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).map_or(self.text.len(), |next| next - 1);
        Some(self.text.get(start..end)?.trim_end_matches('\r'))
    }

    /// The number of the last line. After a newline at the end of the file there is one more, which is empty.
    pub fn line_count(&self) -> u32 {
        self.starts.len() as u32
    }

    /// The lines from `first` to `last`, as far as they are there.
    pub fn lines(&self, first: u32, last: u32) -> impl Iterator<Item = (u32, &str)> {
        (first.max(1)..=last.min(self.line_count())).filter_map(|n| Some((n, self.line(n)?)))
    }
}

fn is_plain(path: &Path) -> bool {
    path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
}

fn index(roots: &[PathBuf]) -> HashMap<OsString, Vec<PathBuf>> {
    let mut index: HashMap<OsString, Vec<PathBuf>> = HashMap::new();
    let mut folders: Vec<(PathBuf, usize)> = roots.iter().map(|root| (root.clone(), 0)).collect();
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MAX_FILES {
                return index;
            }
            // Links are not followed, so there are no cycles.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < MAX_DEPTH && !is_skipped(&entry.file_name()) {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() {
                let paths = index.entry(entry.file_name()).or_default();
                // Roots may overlap.
                if !paths.contains(&entry.path()) {
                    paths.push(entry.path());
                }
            }
        }
    }
    index
}

fn is_skipped(folder: &OsStr) -> bool {
    folder.to_str().is_some_and(|name| name.starts_with('.') || SKIPPED_FOLDERS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("src/list.c", "one\r\ntwo\n"), ("other/list.c", "x"), ("src/map.c", "\u{fffd}")] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn finds_files_as_they_are_from_a_root_and_by_their_end() {
        let dir = tree();
        let sources = Sources::new([dir.path().to_path_buf()]);
        let expected = dir.path().join("src/list.c");
        for recorded in [expected.as_path(), Path::new("src/list.c"), Path::new("/build/pkg-1.0/src/list.c")] {
            assert_eq!(sources.file(recorded).unwrap().path, expected, "{}", recorded.display());
        }
        assert_eq!(sources.relative(Path::new("/build/pkg-1.0/src/list.c")).unwrap(), Path::new("src/list.c"));
    }

    #[test]
    fn a_guess_between_two_is_no_answer() {
        let dir = tree();
        let sources = Sources::new([dir.path().to_path_buf()]);
        assert!(sources.file(Path::new("/build/list.c")).is_none());
        assert!(sources.file(Path::new("/build/map.c")).is_some());
        assert!(sources.file(Path::new("/dev/zero")).is_none());
        assert!(sources.file(Path::new("")).is_none());
    }

    #[test]
    fn lines_begin_at_one() {
        let file = SourceFile::new("x".into(), "one\r\ntwo\n".into());
        assert_eq!(file.line(0), None);
        assert_eq!(file.line(1), Some("one"));
        assert_eq!(file.line(2), Some("two"));
        assert_eq!(file.line(9), None);
        assert_eq!(file.lines(0, u32::MAX).count(), 3);
    }

    #[test]
    fn roots_may_overlap() {
        let dir = tree();
        let sources = Sources::new([dir.path().to_path_buf(), dir.path().join("src")]);
        assert!(sources.file(Path::new("/build/map.c")).is_some());
    }
}
