//! The memory of this process, as the kernel lists it.

/// Device and inode number: a file's identity, whatever its name.
pub(crate) type Inode = (u64, u64);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// As `mmap` takes it.
    pub(crate) protection: i32,
    pub(crate) shared: bool,
    pub(crate) offset: u64,
    /// All zeros: no file.
    pub(crate) inode: Inode,
}

impl Region {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn allows(&self, protection: i32) -> bool {
        self.protection & protection == protection
    }

    /// Whether two regions show the same bytes of a file.
    pub(crate) fn overlaps_in_file(&self, other: &Self) -> bool {
        let starts_within = |a: &Self, b: &Self| (b.offset..b.offset + b.len()).contains(&a.offset);
        self.inode == other.inode && (starts_within(self, other) || starts_within(other, self))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (range, permissions) = (words.next()?, words.next()?.as_bytes());
        let (offset, device, inode) = (words.next()?, words.next()?, words.next()?);
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let ((start, end), (major, minor)) = (range.split_once('-')?, device.split_once(':')?);
        let may = |at: usize, letter, what| if permissions.get(at) == Some(&letter) { what } else { 0 };
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            protection: may(0, b'r', libc::PROT_READ) | may(1, b'w', libc::PROT_WRITE) | may(2, b'x', libc::PROT_EXEC),
            shared: permissions.get(3) == Some(&b's'),
            offset: hex(offset)?,
            inode: (libc::makedev(hex(major)? as u32, hex(minor)? as u32), inode.parse().ok()?),
        })
    }
}

/// All mappings, in order.
pub(crate) fn regions() -> Vec<Region> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(Region::parse).collect()
}
