//! An unnamed file, mapped for reading and writing, which holds an image of PM.

use std::fs::File;
use std::io;
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, fallocate};

use crate::crash::{PAGE, data};
use crate::sparse;

/// Sparse: what was never written takes no space.
#[derive(Debug)]
pub struct MappedFile {
    file: Arc<File>,
    size: u64,
    map: Option<MmapMut>,
}

impl MappedFile {
    /// Takes an empty file, which nobody else may resize.
    pub fn new(file: File) -> Self {
        Self { file: Arc::new(file), size: 0, map: None }
    }

    /// Fills itself with the content of another file.
    pub fn load(&mut self, from: &File) -> io::Result<()> {
        self.resize(0)?;
        sparse::copy(from, &self.file)?;
        self.resize(from.metadata()?.len())
    }

    /// The file itself, for others to read or map.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The whole content.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// The whole content, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }

    /// Makes the file longer, by zeros, or cuts it.
    pub fn resize(&mut self, size: u64) -> io::Result<()> {
        if size == self.size {
            return Ok(());
        }
        self.map = None;
        self.file.set_len(size)?;
        self.size = size;
        if size > 0 {
            self.map = Some(map(&self.file, size)?);
        }
        Ok(())
    }

    /// Makes the file longer and reserves disk space for all of it. Without enough space, the file stays as it is.
    pub fn resize_reserved(&mut self, size: u64) -> io::Result<()> {
        let reserved = fallocate(&self.file, FallocateFlags::empty(), 0, size).map_err(io::Error::from);
        // Some file systems cannot reserve space.
        if let Err(error) = reserved
            && error.kind() != io::ErrorKind::Unsupported
        {
            let _ = self.file.set_len(self.size);
            return Err(error);
        }
        self.resize(size)
    }

    /// Writes the part that lies within the file. Stores past the end of a file reach its last page, but not the file.
    pub fn store(&mut self, offset: u64, data: &[u8]) {
        let data = &data[..data.len().min(self.size.saturating_sub(offset) as usize)];
        let at = offset as usize;
        match data.len() {
            0 => {}
            // The common sizes, without a call.
            8 => self.bytes_mut()[at..at + 8].copy_from_slice(&data[..8]),
            4 => self.bytes_mut()[at..at + 4].copy_from_slice(&data[..4]),
            len => self.bytes_mut()[at..at + len].copy_from_slice(data),
        }
    }

    /// Writes like a system call, which makes a file longer.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if end > self.size {
            self.resize(end)?;
        }
        self.store(offset, data);
        Ok(())
    }

    /// Fills a range with zeros, as far as it lies within the file.
    pub fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return Ok(());
        }
        // A hole reads as zeros and takes no memory.
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, how, offset, end - offset).is_err() {
            self.bytes_mut()[offset as usize..end as usize].fill(0);
        }
        Ok(())
    }
}

/// A file that others write to, and that is restored while they are at rest.
#[derive(Debug)]
pub struct Restored {
    file: Arc<File>,
    map: Option<MmapMut>,
}

impl Restored {
    /// Takes a file of any content. It is mapped when it is first put back.
    pub fn new(file: Arc<File>) -> Self {
        Self { file, map: None }
    }

    /// Makes the file consist of these pages, given in order, and of zeros. Writes only what differs.
    pub fn restore<'a>(&mut self, size: u64, pages: impl Iterator<Item = (u64, &'a [u8])>) -> io::Result<()> {
        // Before any access to the mapping: there is nothing to access past the end of a file.
        if self.file.metadata()?.len() != size {
            self.file.set_len(size)?;
        }
        if size == 0 {
            return Ok(());
        }
        if self.map.as_ref().is_none_or(|map| map.len() as u64 != size) {
            self.map = None;
        }
        let bytes: &mut [u8] = match &mut self.map {
            Some(map) => map,
            none => none.insert(map(&self.file, size)?),
        };
        let mut pages = pages.filter(|(index, _)| index * (PAGE as u64) < size).peekable();
        for (start, end) in data(&self.file, 0, size) {
            let first = start / PAGE as u64;
            // Pages that should be there and are holes now.
            while let Some((index, page)) = pages.next_if(|(index, _)| *index < first) {
                put(bytes, index, page);
            }
            for index in first..end.div_ceil(PAGE as u64) {
                match pages.next_if(|(next, _)| *next == index) {
                    Some((_, page)) => put(bytes, index, page),
                    None => clear(bytes, index),
                }
            }
        }
        for (index, page) in pages {
            put(bytes, index, page);
        }
        Ok(())
    }
}

fn page_of(bytes: &mut [u8], index: u64) -> &mut [u8] {
    let start = index as usize * PAGE;
    let end = bytes.len().min(start + PAGE);
    &mut bytes[start..end]
}

fn put(bytes: &mut [u8], index: u64, page: &[u8]) {
    let there = page_of(bytes, index);
    let len = there.len().min(page.len());
    if there[..len] != page[..len] {
        there[..len].copy_from_slice(&page[..len]);
    }
}

fn clear(bytes: &mut [u8], index: u64) {
    let there = page_of(bytes, index);
    if there.iter().any(|&b| b != 0) {
        there.fill(0);
    }
}

/// A writable shared mapping of a whole file, which is not empty.
fn map(file: &File, size: u64) -> io::Result<MmapMut> {
    // SAFETY: only we have the file, or others are at rest while the mapping is used; it is never truncated while it is
    // mapped.
    unsafe { MmapOptions::new().len(size as usize).map_mut(file) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_is_put_back_whatever_became_of_it() {
        let size = 5 * PAGE as u64 + 100;
        let (one, end) = ([1; PAGE], [2; 100]);
        let pages = || [(1, &one[..]), (5, &end[..])].into_iter();
        let mut expected = vec![0; size as usize];
        expected[PAGE..2 * PAGE].fill(1);
        expected[5 * PAGE..].fill(2);
        let file = Arc::new(sparse::unnamed("/x".as_ref()).unwrap());
        let mut restored = Restored::new(Arc::clone(&file));
        let changes: [&dyn Fn(); 5] = [
            &|| {},
            &|| file.write_all_at(&[7; 3 * PAGE], 10).unwrap(),
            &|| file.set_len(100).unwrap(),
            &|| file.set_len(0).unwrap(),
            &|| file.write_all_at(b"more", size + 5000).unwrap(),
        ];
        for change in changes {
            change();
            restored.restore(size, pages()).unwrap();
            let mut found = Vec::new();
            io::Read::read_to_end(&mut File::open(crate::sandbox::path_of(&file)).unwrap(), &mut found).unwrap();
            assert!(found == expected);
        }
    }
}
