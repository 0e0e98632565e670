//! The tree of images, on disk.
//!
//! Two files, which only ever grow: `pages` holds each distinct page once, compressed; `images.jsonl` has a line for each image:
//! its parent, the input that was run on the parent, where that run was stopped, and the pages that differ. A page is written
//! before the line that needs it, so a kill leaves at most one torn entry at the end of each file, which no other needs and which
//! is cut off. Any other damage is an error, and then nothing is changed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::content::{FileContent, ImageId, PmContent, PmPage};
use crate::corpus_lock::{self, Claim, Format};
use crate::json_lines;

/// How an image came about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `None` for the content that everything starts with.
    pub parent: Option<ImageId>,
    /// The input that ran on the parent; without a parent, the setup command, if there was any.
    #[serde(with = "hex")]
    pub input: Vec<u8>,
    /// The operation on PM and the fence before which the run was stopped: a crash. Zeros: it ran to its end.
    pub stop: (u64, u64),
}

impl Origin {
    /// Whether the run was stopped, rather than ended by itself.
    pub fn is_crash(&self) -> bool {
        self.stop != (0, 0)
    }
}

/// A line of `images.jsonl`.
#[derive(Debug, Serialize, Deserialize)]
struct ImageLine {
    id: ImageId,
    #[serde(flatten)]
    origin: Origin,
    files: Vec<FileLine>,
}

/// The differences of a file from the parent's.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct FileLine {
    #[serde(with = "pmvet_events::paths::as_text")]
    path: PathBuf,
    size: u64,
    /// Pages that differ, with their hash; `None`: all zeros.
    pages: Vec<(u64, Option<ImageId>)>,
}

#[derive(Debug)]
struct Known {
    origin: Origin,
    files: Vec<FileLine>,
}

/// Where each page is in the pack, by its content: offset and length.
type Pages = HashMap<u128, (u64, u32)>;

/// All images of a campaign, with their origins.
#[derive(Debug)]
pub struct ImageStore {
    /// Nothing if it is only read.
    _claim: Option<Claim>,
    torn: bool,
    images: HashMap<ImageId, Known>,
    lines: File,
    lines_end: u64,
    pages: Pages,
    pack: File,
    pack_end: u64,
    /// Contents that were used last.
    recent: VecDeque<(ImageId, Arc<PmContent>)>,
    root: Option<ImageId>,
}

/// Changes whenever older versions of pmvet would misread what this one writes.
const FORMAT: u32 = 1;
const LINES: &str = "images.jsonl";
const PAGES: &str = "pages";
const RECENT: usize = 32;
/// Before each page in the pack: its hash and how many bytes follow.
const PAGE_HEADER: usize = 16 + 4;

impl ImageStore {
    /// Opens a store in a folder that exists, or makes one. Fails if another process has it open, if it has another format, or if it is
    /// damaged in another way than by a kill.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let claim = Claim::new(folder, FORMAT, LINES)?;
        let open =
            |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(name));
        let store = Self { _claim: Some(claim), ..Self::read(folder, open(LINES)?, open(PAGES)?)? };
        if store.torn {
            store.pack.set_len(store.pack_end)?;
            store.lines.set_len(store.lines_end)?;
        }
        Ok(store)
    }

    /// Opens the present part of a store to which another process may be adding.
    pub fn open_for_reading(folder: &Path) -> io::Result<Self> {
        if corpus_lock::check_format(folder, FORMAT, LINES)? == Format::None {
            return Err(io::ErrorKind::NotFound.into());
        }
        Self::read(folder, File::open(folder.join(LINES))?, File::open(folder.join(PAGES))?)
    }

    fn read(folder: &Path, lines: File, pack: File) -> io::Result<Self> {
        let path = folder.join(LINES);
        // Reads the lines first: the pages that they need were written before them.
        let held = json_lines::read::<ImageLine>(&lines, &path)?;
        let (pages, pack_end) = read_pack(&pack)?;
        let torn = held.torn || pack_end != pack.metadata()?.len();
        let mut store = Self {
            _claim: None,
            torn,
            images: HashMap::new(),
            lines,
            lines_end: held.end,
            pages,
            pack,
            pack_end,
            recent: VecDeque::new(),
            root: None,
        };
        for (number, line) in (1..).zip(held.entries) {
            let needed = line.files.iter().flat_map(|file| &file.pages).filter_map(|(_, page)| page.as_ref());
            if let Some(page) = needed.into_iter().find(|page| !store.pages.contains_key(&page.0)) {
                let why =
                    format!("{} does not have page {page} of it, or is damaged before", folder.join(PAGES).display());
                return Err(json_lines::damaged(&path, number, &why));
            }
            if let Some(parent) = line.origin.parent.filter(|&parent| !store.contains(parent)) {
                return Err(json_lines::damaged(&path, number, &format!("no line before it has its parent, {parent}")));
            }
            store.remember(line);
        }
        Ok(store)
    }

    /// Whether a kill had torn the end, which was then dropped.
    pub fn was_torn(&self) -> bool {
        self.torn
    }

    /// Copies an image from another store that starts from the same content, with all its ancestors.
    pub fn adopt(&mut self, other: &mut Self, image: ImageId) -> io::Result<()> {
        let mut line = Vec::new();
        let mut at = Some(image);
        while let Some(id) = at.filter(|id| !self.contains(*id)) {
            let origin = other.origin(id).cloned().ok_or(io::ErrorKind::NotFound)?;
            at = origin.parent;
            line.push((id, origin));
        }
        for (id, origin) in line.into_iter().rev() {
            let content = other.get(id)?;
            self.add((*content).clone(), origin)?;
        }
        Ok(())
    }

    fn remember(&mut self, line: ImageLine) {
        if line.origin.parent.is_none() {
            self.root = Some(line.id);
        }
        self.images.insert(line.id, Known { origin: line.origin, files: line.files });
    }

    /// The image that everything starts with, once it was added.
    pub fn root(&self) -> Option<ImageId> {
        self.root
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Whether there is no image yet, not even the root.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Whether it has this image.
    pub fn contains(&self, id: ImageId) -> bool {
        self.images.contains_key(&id)
    }

    /// How an image came about. Nothing if it is not here.
    pub fn origin(&self, id: ImageId) -> Option<&Origin> {
        self.images.get(&id).map(|known| &known.origin)
    }

    /// The nearest image that this one came from and that no crash came before.
    pub fn before_crashes(&self, id: ImageId) -> Option<ImageId> {
        let mut found = None;
        let mut next = Some(id);
        while let Some(image) = next {
            let origin = self.origin(image)?;
            match (origin.is_crash(), found) {
                (true, _) => found = None,
                (false, None) => found = Some(image),
                (false, Some(_)) => {}
            }
            next = origin.parent;
        }
        found
    }

    /// How many bytes it takes on disk.
    pub fn bytes(&self) -> u64 {
        self.pack_end + self.lines_end
    }

    /// Keeps an image, unless its content is there already. Returns its id and whether it is new.
    pub fn add(&mut self, content: PmContent, origin: Origin) -> io::Result<(ImageId, bool)> {
        let id = content.id();
        if self.contains(id) {
            return Ok((id, false));
        }
        let parent = match origin.parent {
            Some(parent) => self.get(parent)?,
            None => Arc::default(),
        };
        let mut files = Vec::new();
        for (path, file) in &content.files {
            let before = parent.files.get(path).cloned().unwrap_or_default();
            let mut pages = Vec::new();
            for (&index, page) in &file.pages {
                if before.pages.get(&index).map(|b| b.hash) != Some(page.hash) {
                    self.keep_page(page)?;
                    pages.push((index, Some(ImageId(page.hash))));
                }
            }
            pages.extend(before.pages.keys().filter(|i| !file.pages.contains_key(i)).map(|&i| (i, None)));
            files.push(FileLine { path: path.clone(), size: file.size, pages });
        }
        let line = ImageLine { id, origin, files };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        self.lines.write_all_at(&text, self.lines_end)?;
        self.lines_end += text.len() as u64;
        self.remember(line);
        self.use_content(id, Arc::new(content));
        Ok((id, true))
    }

    fn keep_page(&mut self, page: &PmPage) -> io::Result<()> {
        if self.pages.contains_key(&page.hash) {
            return Ok(());
        }
        let packed = lz4_flex::block::compress_prepend_size(&page.bytes);
        let mut entry = page.hash.to_le_bytes().to_vec();
        entry.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        entry.extend_from_slice(&packed);
        self.pack.write_all_at(&entry, self.pack_end)?;
        self.pages.insert(page.hash, (self.pack_end + PAGE_HEADER as u64, packed.len() as u32));
        self.pack_end += entry.len() as u64;
        Ok(())
    }

    fn use_content(&mut self, id: ImageId, content: Arc<PmContent>) {
        self.recent.retain(|(known, _)| *known != id);
        self.recent.push_front((id, content));
        self.recent.truncate(RECENT);
    }

    /// The content of an image.
    pub fn get(&mut self, id: ImageId) -> io::Result<Arc<PmContent>> {
        if let Some((_, content)) = self.recent.iter().find(|(known, _)| *known == id) {
            let content = Arc::clone(content);
            self.use_content(id, Arc::clone(&content));
            return Ok(content);
        }
        let content = Arc::new(self.load(id)?);
        self.use_content(id, Arc::clone(&content));
        Ok(content)
    }

    fn load(&self, id: ImageId) -> io::Result<PmContent> {
        let newest = self.images.get(&id).ok_or(io::ErrorKind::NotFound)?;
        let mut content = PmContent::default();
        for file in &newest.files {
            // The newest entry for each page counts.
            let mut pages: BTreeMap<u64, Option<ImageId>> = BTreeMap::new();
            let mut at = Some(id);
            while let Some(known) = at.and_then(|id| self.images.get(&id)) {
                let Some(line) = known.files.iter().find(|line| line.path == file.path) else { break };
                for &(index, page) in &line.pages {
                    pages.entry(index).or_insert(page);
                }
                at = known.origin.parent;
            }
            let mut loaded = FileContent { size: file.size, pages: BTreeMap::new() };
            for (index, hash) in pages {
                if let Some(hash) = hash {
                    loaded.pages.insert(index, self.load_page(hash.0)?);
                }
            }
            content.files.insert(file.path.clone(), loaded);
        }
        match content.id() == id {
            true => Ok(content),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, format!("image {id} is damaged"))),
        }
    }

    fn load_page(&self, hash: u128) -> io::Result<PmPage> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a page of the corpus is damaged");
        let &(at, len) = self.pages.get(&hash).ok_or_else(damaged)?;
        let mut packed = vec![0; len as usize];
        self.pack.read_exact_at(&mut packed, at)?;
        let bytes = lz4_flex::block::decompress_size_prepended(&packed).map_err(|_| damaged())?;
        let page = PmPage::new(&bytes);
        if page.hash == hash { Ok(page) } else { Err(damaged()) }
    }
}

/// Where each page is, and where the last whole one ends.
fn read_pack(pack: &File) -> io::Result<(Pages, u64)> {
    let size = pack.metadata()?.len();
    let mut pages = HashMap::new();
    let mut at = 0;
    let mut header = [0; PAGE_HEADER];
    while at + PAGE_HEADER as u64 <= size {
        pack.read_exact_at(&mut header, at)?;
        let (hash, len) = header.split_at(16);
        let hash = u128::from_le_bytes(hash.try_into().unwrap_or_default());
        let len = u32::from_le_bytes(len.try_into().unwrap_or_default());
        let end = at + PAGE_HEADER as u64 + u64::from(len);
        if end > size {
            break;
        }
        pages.insert(hash, (at + PAGE_HEADER as u64, len));
        at = end;
    }
    Ok((pages, at))
}

/// Bytes as hexadecimal digits.
mod hex {
    use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        HEXLOWER_PERMISSIVE.decode(text.as_bytes()).map_err(|_| serde::de::Error::custom("not hexadecimal"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(pages: &[(u64, u8)]) -> PmContent {
        let pages = pages.iter().map(|&(index, byte)| (index, PmPage::new(&[byte; 4096]))).collect();
        let file = FileContent { size: 1 << 20, pages };
        PmContent { files: [(PathBuf::from("/pool"), file)].into() }
    }

    fn child(parent: ImageId) -> Origin {
        Origin { parent: Some(parent), input: b"i 1\n".into(), stop: (0, 3) }
    }

    const ROOT: Origin = Origin { parent: None, input: Vec::new(), stop: (0, 0) };

    #[test]
    fn images_come_back_from_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = ImageStore::open(folder.path()).unwrap();
        let contents = [content(&[(0, 1), (7, 2)]), content(&[(0, 3), (7, 2), (9, 1)]), content(&[(0, 3)])];
        let (root, _) = store.add(contents[0].clone(), ROOT).unwrap();
        let (second, _) = store.add(contents[1].clone(), child(root)).unwrap();
        let (third, new) = store.add(contents[2].clone(), child(second)).unwrap();
        assert!(new && !store.add(contents[2].clone(), child(root)).unwrap().1);
        drop(store);
        let mut store = ImageStore::open(folder.path()).unwrap();
        for (id, content) in [root, second, third].into_iter().zip(&contents) {
            assert_eq!(&*store.get(id).unwrap(), content);
        }
        assert_eq!(store.origin(third), Some(&child(second)));
        assert_eq!(store.root(), Some(root));
    }

    #[test]
    fn the_image_before_all_crashes_is_the_last_one_without_any() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = ImageStore::open(folder.path()).unwrap();
        let mut add = |byte, origin| store.add(content(&[(0, byte)]), origin).unwrap().0;
        let ended = |parent| Origin { stop: (0, 0), ..child(parent) };
        let root = add(1, ROOT);
        let calm = add(2, ended(root));
        let crash = add(3, child(calm));
        let afterwards = add(4, ended(crash));
        let another_crash = add(5, child(afterwards));
        for (image, before) in [(root, root), (calm, calm), (crash, calm), (afterwards, calm), (another_crash, calm)] {
            assert_eq!(store.before_crashes(image), Some(before));
        }
    }

    #[test]
    fn a_cut_store_loses_only_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = ImageStore::open(folder.path()).unwrap();
        let (root, _) = store.add(content(&[(0, 1)]), ROOT).unwrap();
        let (second, _) = store.add(content(&[(0, 2)]), child(root)).unwrap();
        drop(store);
        let lines = std::fs::read(folder.path().join("images.jsonl")).unwrap();
        for cut in 1..40 {
            std::fs::write(folder.path().join("images.jsonl"), &lines[..lines.len() - cut]).unwrap();
            let mut store = ImageStore::open(folder.path()).unwrap();
            assert!(store.was_torn() && store.get(root).is_ok());
            assert!(!store.contains(second));
            assert!(store.add(content(&[(0, 2)]), child(root)).unwrap().1);
        }
        let mut store = ImageStore::open(folder.path()).unwrap();
        assert!(!store.was_torn() && store.get(second).is_ok());
    }

    #[test]
    fn a_damaged_store_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = ImageStore::open(folder.path()).unwrap();
        let (root, _) = store.add(content(&[(0, 1)]), ROOT).unwrap();
        store.add(content(&[(0, 2)]), child(root)).unwrap();
        drop(store);
        let (lines, pages) = (folder.path().join(LINES), folder.path().join(PAGES));
        let (text, pack) = (std::fs::read(&lines).unwrap(), std::fs::read(&pages).unwrap());
        let refused = |line: usize| {
            let (before, packed) = (std::fs::read(&lines).unwrap(), std::fs::read(&pages).unwrap());
            for error in
                [ImageStore::open(folder.path()).unwrap_err(), ImageStore::open_for_reading(folder.path()).unwrap_err()]
            {
                assert!(error.to_string().contains(&format!("line {line} of {}", lines.display())), "{error}");
            }
            assert_eq!((std::fs::read(&lines).unwrap(), std::fs::read(&pages).unwrap()), (before, packed));
        };
        // The first line, though the second is whole.
        std::fs::write(&lines, [b"?", &text[1..]].concat()).unwrap();
        refused(1);
        // A line is missing that a later one needs.
        let second = text.iter().position(|&b| b == b'\n').unwrap() + 1;
        std::fs::write(&lines, &text[second..]).unwrap();
        refused(1);
        // The length of the first page, which makes everything after it look torn.
        std::fs::write(&lines, &text).unwrap();
        let mut damaged = pack.clone();
        damaged[19] = 0x7f;
        std::fs::write(&pages, damaged).unwrap();
        refused(1);
        // A page that is not there to its end, though a whole line needs it.
        std::fs::write(&pages, &pack[..pack.len() - 1]).unwrap();
        refused(2);
        std::fs::write(&pages, &pack).unwrap();
        assert_eq!(ImageStore::open(folder.path()).unwrap().len(), 2);
    }

    #[test]
    fn one_campaign_at_a_time_but_any_number_of_readers() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = ImageStore::open(folder.path()).unwrap();
        let (root, _) = store.add(content(&[(0, 1)]), ROOT).unwrap();
        assert_eq!(ImageStore::open(folder.path()).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(ImageStore::open_for_reading(folder.path()).unwrap().root(), Some(root));
        drop(store);
        assert_eq!(ImageStore::open(folder.path()).unwrap().root(), Some(root));
        std::fs::write(folder.path().join("format"), "99\n").unwrap();
        for error in
            [ImageStore::open(folder.path()).unwrap_err(), ImageStore::open_for_reading(folder.path()).unwrap_err()]
        {
            assert!(error.to_string().contains("format `99`"), "{error}");
        }
    }

    #[test]
    fn images_are_taken_over_with_what_led_to_them() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [mut one, mut two] = folders.each_ref().map(|folder| ImageStore::open(folder.path()).unwrap());
        let (root, _) = one.add(content(&[(0, 1)]), ROOT).unwrap();
        two.add(content(&[(0, 1)]), ROOT).unwrap();
        let (second, _) = one.add(content(&[(0, 2)]), child(root)).unwrap();
        let (third, _) = one.add(content(&[(0, 2), (5, 5)]), child(second)).unwrap();
        let mut reader = ImageStore::open_for_reading(folders[0].path()).unwrap();
        two.adopt(&mut reader, third).unwrap();
        assert_eq!((two.len(), two.origin(third)), (3, Some(&child(second))));
        assert_eq!(*two.get(third).unwrap(), content(&[(0, 2), (5, 5)]));
        assert!(two.adopt(&mut reader, ImageId(1)).is_err());
    }

    /// A corpus that has grown for long: what each run leaves differs from what it started with in a few pages.
    #[test]
    #[ignore = "a minute, and half a gibibyte of disk"]
    fn many_large_images_take_little_room() {
        const PAGES: u64 = (64 << 20) / 4096;
        let folder = tempfile::tempdir().unwrap();
        let mut store = ImageStore::open(folder.path()).unwrap();
        // Pages that cannot be compressed.
        let mut state = 1u64;
        let mut page = || {
            let mut bytes = [0; 4096];
            for word in bytes.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            PmPage::new(&bytes)
        };
        let pages = (0..PAGES).map(|index| (index, page())).collect();
        let mut content =
            PmContent { files: [(PathBuf::from("/pool"), FileContent { size: PAGES * 4096, pages })].into() };
        let (mut parent, _) = store.add(content.clone(), ROOT).unwrap();
        for number in 1..10_000u64 {
            let file = content.files.values_mut().next().unwrap();
            for change in 0..8 {
                file.pages.insert((number * 31 + change * 1021) % PAGES, page());
            }
            (parent, _) = store.add(content.clone(), child(parent)).unwrap();
        }
        assert_eq!(store.len(), 10_000);
        println!("{} MiB", store.bytes() >> 20);
        assert!(store.bytes() < 2 << 30);
        drop(store);
        assert_eq!(*ImageStore::open(folder.path()).unwrap().get(parent).unwrap(), content);
    }
}
