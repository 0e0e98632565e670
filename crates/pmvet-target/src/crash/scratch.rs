//! Files for a recovery to work on.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pmvet_events::ids::FileId;
use rustix::fs::{FallocateFlags, fallocate};

use super::PAGE;
use super::replay::data;
use super::versions::{VersionId, Versions};
use crate::sandbox::Overlay;
use crate::sparse;

/// Bytes that differ from a version: a store that the crash lost, say.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Patch {
    /// The file that is changed.
    pub file: FileId,
    /// The first byte. Bytes past the end make the file longer.
    pub offset: u64,
    /// What is there instead.
    pub bytes: Vec<u8>,
}

/// One file in memory for each PM file. A recovery may change them at will; its changes are found and undone when the files become
/// the next version, which costs a look at each page that is not a hole.
#[derive(Debug, Default)]
pub struct Scratch {
    files: HashMap<FileId, Arc<File>>,
}

impl Scratch {
    /// Turns the files into the given version, with some bytes changed, and puts them into `overlay` under their names.
    pub fn become_version(
        &mut self,
        versions: &Versions,
        id: VersionId,
        patches: &[Patch],
        overlay: &mut Overlay,
    ) -> io::Result<()> {
        let version = versions.get(id).ok_or(io::ErrorKind::NotFound)?;
        for state in &version.files {
            for path in &state.former {
                overlay.hide(path.clone());
            }
            if !state.exists {
                overlay.hide(state.path.clone());
                continue;
            }
            let file = match self.files.get(&state.file) {
                Some(file) => Arc::clone(file),
                None => {
                    let file = Arc::new(sparse::unnamed(&state.path)?);
                    self.files.insert(state.file, Arc::clone(&file));
                    file
                }
            };
            restore(&file, state.size, versions.pages(state.file, id))?;
            for patch in patches.iter().filter(|p| p.file == state.file) {
                file.write_all_at(&patch.bytes, patch.offset)?;
            }
            overlay.put(state.path.clone(), file);
        }
        Ok(())
    }
}

/// Makes a file consist of these pages, and of zeros between them.
pub fn restore<'a>(file: &File, size: u64, pages: impl Iterator<Item = (u64, &'a [u8])>) -> io::Result<()> {
    file.set_len(size)?;
    let mut pages = pages.filter(|(index, _)| index * (PAGE as u64) < size).peekable();
    let mut buffer = vec![0; 64 * PAGE];
    let write = |index: u64, page: &[u8]| {
        let at = index * PAGE as u64;
        file.write_all_at(&page[..page.len().min((size - at) as usize)], at)
    };
    for (start, end) in data(file, 0, size) {
        let mut at = start;
        while at < end {
            // Pages in a hole before this part.
            while let Some((index, page)) = pages.next_if(|(index, _)| index * (PAGE as u64) < at) {
                write(index, page)?;
            }
            let want = buffer.len().min((end - at) as usize);
            let read = file.read_at(&mut buffer[..want], at)?;
            for (i, found) in buffer[..read].chunks(PAGE).enumerate() {
                let index = at / PAGE as u64 + i as u64;
                match pages.next_if(|(next, _)| *next == index) {
                    Some((_, page)) if found == &page[..found.len()] => {}
                    Some((_, page)) => write(index, page)?,
                    // Zeros are left: the next run will touch this memory again.
                    None if found.iter().all(|&b| b == 0) => {}
                    None => clear(file, index, found)?,
                }
            }
            at += read.max(PAGE) as u64;
        }
    }
    for (index, page) in pages {
        write(index, page)?;
    }
    Ok(())
}

/// Frees a page, so that it reads as zeros and takes no memory.
fn clear(file: &File, index: u64, found: &[u8]) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let at = index * PAGE as u64;
    fallocate(file, how, at, PAGE as u64).or_else(|_| file.write_all_at(&vec![0; found.len()], at))
}
