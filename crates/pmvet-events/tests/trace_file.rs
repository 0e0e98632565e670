//! The trace file keeps every event, and the reader refuses everything that is not a complete trace.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;

use pmvet_events::event::*;
use pmvet_events::file::*;
use pmvet_events::*;
use proptest::collection::vec;
use proptest::prelude::*;

// ---------------------------------------------------------------------------------------------------------------------
// Events that own what they refer to

#[derive(Debug, Clone, Default)]
struct Tree {
    sites: HashMap<SiteId, Site>,
    contexts: HashMap<ContextId, Context>,
}

impl Places for Tree {
    fn site(&self, id: SiteId) -> Option<Site> {
        self.sites.get(&id).copied()
    }

    fn context(&self, id: ContextId) -> Option<Context> {
        self.contexts.get(&id).copied()
    }
}

/// One event, as the numbers and bytes that it is made of.
#[derive(Debug, Clone)]
struct Seed {
    step: u64,
    place: [u32; 3],
    kind: u8,
    how: u8,
    numbers: [u64; 4],
    bytes: Vec<u8>,
    other: Vec<u8>,
    text: String,
}

const KINDS: u8 = 33;

impl Seed {
    fn what(&self) -> What<'_> {
        let [a, b, c, d] = self.numbers;
        let (file, text) = (FileId(b as u32), &self.text[..]);
        let path = paths::of_bytes(&self.bytes);
        let flag = self.how & 1 != 0;
        fn pick<T: Copy>(all: &[T], how: u8) -> T {
            all[usize::from(how) % all.len()]
        }
        match self.kind {
            0 => What::Store { addr: a, value: &self.bytes, how: pick(StoreKind::ALL, self.how) },
            1 => What::Load { addr: a, size: b as u32 },
            2 => What::Rmw { addr: a, old: &self.bytes, new: &self.other, stored: flag, discards: flag && a % 3 == 0 },
            3 => What::Flush { addr: a, how: pick(FlushKind::ALL, self.how), pm: c & 1 != 0 },
            4 => What::Fence { how: pick(FenceKind::ALL, self.how) },
            5 => What::Unsupported { addr: a, size: b as u32, why: text },
            6 => What::File { file, size: a, device: c, inode: d, path },
            7 => What::Map { file, addr: a, len: c, offset: d, writable: flag },
            8 => What::Unmap { addr: a, len: b },
            9 if flag && c % 3 == 0 => What::Request { connection: c as u32, data: &self.bytes },
            9 if flag => What::Connection { connection: c as u32, address: text },
            9 => What::FileWrite { file, offset: a, data: &self.bytes },
            10 if flag => What::FileRead { file, offset: a, len: c },
            10 => What::FileZero { file, offset: a, len: c },
            11 if flag && c % 3 == 0 => What::Input { len: a },
            11 if flag && c % 3 == 1 => What::Reply { connection: c as u32, len: a, lines: c },
            11 if flag => What::Output { len: a, lines: c },
            11 => What::FileResize { file, size: a },
            12 => What::FileSync { file, offset: a, len: c, how: pick(SyncKind::ALL, self.how) },
            13 => What::FileRename { file, to: path },
            14 => What::FileUnlink { file },
            15 => What::ThreadStart { process: a as u32, os_thread: b as u32 },
            16 => What::ThreadExit,
            17 => What::ThreadCreate { child: ThreadId(a as u32) },
            18 => What::ThreadJoin { child: ThreadId(a as u32) },
            19 => What::Acquire { lock: a, how: pick(LockKind::ALL, self.how) },
            20 => What::Release { lock: a, how: pick(LockKind::ALL, self.how) },
            21 => What::Sync { object: a, op: pick(SyncOp::ALL, self.how) },
            22 => What::ProcessStart { process: a as u32, parent: b as u32, path },
            23 => What::ProcessExit { process: a as u32 },
            24 => What::Exec { path },
            25 => What::Module { module: ModuleId(b as u32), base: a, size: c, path },
            26 => What::Marker { how: pick(MarkerKind::ALL, self.how), addr: a, len: b, text },
            27 => What::Atomic { addr: a, old: &self.bytes, new: &self.other, how: pick(AtomicKind::ALL, self.how) },
            29 => What::ThreadDetach { child: ThreadId(a as u32) },
            28 => What::Allocate { addr: a, len: b },
            30 => What::Step { addr: a, len: b, state: &self.bytes },
            31 => What::Transaction { op: pick(TransactionOp::ALL, self.how), addr: a, len: b },
            _ => What::Interrupted { addr: a, size: b as u32 },
        }
    }

    fn event(&self, last: u64) -> Event<'_> {
        let [thread, site, context] = self.place;
        let what = self.what();
        // Mostly as the contract says; `step` is what a damaged run adds to it.
        let seq = last.wrapping_add(u64::from(what.is_numbered())).saturating_add(self.step);
        Event { seq, thread: ThreadId(thread), site: SiteId(site), context: ContextId(context), what }
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..300u64,
        any::<u64>(),
        (0..64u64).prop_map(|n| 0x7f00_0000_1000 + 8 * n),
        Just(u64::MAX),
        Just(1 << 63)
    ]
}

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..12u32, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => number().prop_map(|n| n.to_le_bytes().to_vec()),
        3 => vec(any::<u8>(), 0..9),
        1 => vec(any::<u8>(), 9..70),
        1 => (0..5000usize).prop_map(|len| vec![0; len]),
    ]
}

fn seed() -> impl Strategy<Value = Seed> {
    (
        prop_oneof![9 => Just(0), 1 => number()],
        [id(), id(), id()],
        prop_oneof![0..5u8, 0..KINDS],
        any::<u8>(),
        [number(), number(), number(), number()],
        bytes(),
        bytes(),
        "\\PC{0,12}",
    )
        .prop_map(|(step, place, kind, how, numbers, bytes, other, text)| {
            // A read-modify-write mostly has two values of the same length.
            let other = if how & 2 != 0 { bytes.iter().map(|byte| byte ^ 1).collect() } else { other };
            Seed { step, place, kind, how, numbers, bytes, other, text }
        })
}

/// A tree with holes, forward references and cycles: the writer must cope with any.
fn tree() -> impl Strategy<Value = Tree> {
    let sites = proptest::collection::hash_map(id(), (number(), id()), 0..20);
    let contexts = proptest::collection::hash_map(id(), (id(), id()), 0..20);
    (sites, contexts).prop_map(|(sites, contexts)| Tree {
        sites: (sites.into_iter().filter(|(id, _)| *id != 0))
            .map(|(id, (pc, module))| (SiteId(id), Site { pc, module: ModuleId(module) }))
            .collect(),
        contexts: (contexts.into_iter().filter(|(id, _)| *id != 0))
            .map(|(id, (parent, call))| (ContextId(id), Context { parent: ContextId(parent), call: SiteId(call) }))
            .collect(),
    })
}

fn header() -> TraceHeader {
    TraceHeader { command: vec!["./kv".into(), "put".into()], pmvet_version: "0.1.0".into(), loads: true }
}

fn end() -> TraceEnd {
    TraceEnd { events: 0, complete: true, exit: "exited with status 0".into() }
}

fn record(seeds: &[Seed], places: &dyn Places) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    let mut last = 0;
    for seed in seeds {
        let event = seed.event(last);
        last = event.seq;
        writer.write(&event, places).unwrap();
    }
    writer.finish(&end()).unwrap()
}

/// Reads all events and returns how many there were.
fn read(bytes: &[u8]) -> Result<u64, TraceError> {
    let mut events = 0;
    let mut reader = TraceReader::new(bytes)?;
    reader.for_each(|_, _| {
        events += 1;
        Ok::<_, TraceError>(())
    })?;
    assert_eq!(reader.end().unwrap().events, events);
    Ok(events)
}

/// One event of each kind.
fn sample() -> (Vec<Seed>, Tree) {
    let seeds = (0..2 * KINDS).map(|n| Seed {
        step: 0,
        place: [1, 1 + u32::from(n % 5), 3],
        kind: n % KINDS,
        how: n,
        numbers: [0x7f00_0000_0000 + 8 * u64::from(n), 8, 64, 4096],
        bytes: vec![n; 8],
        other: vec![n + 1; 8],
        text: "/mnt/pmem/pool".into(),
    });
    let site = |n: u32| (SiteId(n), Site { pc: 0x1000 + 4 * u64::from(n), module: ModuleId(1) });
    let context = |n: u32| (ContextId(n), Context { parent: ContextId(n - 1), call: SiteId(n + 10) });
    let tree = Tree { sites: (1..20).map(site).collect(), contexts: (1..4).map(context).collect() };
    (seeds.collect(), tree)
}

// ---------------------------------------------------------------------------------------------------------------------
// What is written is read

proptest! {
    #[test]
    fn every_event_survives(seeds in vec(seed(), 0..120), tree in tree()) {
        let bytes = record(&seeds, &tree);
        let mut reader = TraceReader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let mut last = 0;
        for seed in &seeds {
            let expected = seed.event(last);
            last = expected.seq;
            prop_assert!(reader.end().is_none());
            let (event, places) = reader.next_in_place().unwrap().unwrap();
            prop_assert_eq!(event, expected);
            prop_assert_eq!(places.site(expected.site), tree.site(expected.site));
            prop_assert_eq!(places.context(expected.context), tree.context(expected.context));
            // The whole path, with its instructions.
            let calls = tree.calls(expected.context);
            prop_assert_eq!(places.calls(expected.context), calls.clone());
            for call in calls {
                prop_assert_eq!(places.site(call), tree.site(call));
            }
        }
        prop_assert!(reader.next().unwrap().is_none());
        prop_assert!(reader.next().unwrap().is_none());
        prop_assert_eq!(reader.end(), Some(&TraceEnd { events: seeds.len() as u64, ..end() }));
    }

    #[test]
    fn header_and_end_survive(
        command in vec(vec(1..=255u8, 0..20), 0..4), version in "\\PC{0,20}", loads: bool, complete: bool, exit in "\\PC*",
    ) {
        let command = command.into_iter().map(OsString::from_vec).collect();
        let header = TraceHeader { command, pmvet_version: version, loads };
        let end = TraceEnd { events: 0, complete, exit };
        let bytes = TraceWriter::new(Vec::new(), &header).unwrap().finish(&end).unwrap();
        let mut reader = TraceReader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.header(), &header);
        prop_assert!(reader.next().unwrap().is_none());
        prop_assert_eq!(reader.end(), Some(&end));
    }
}

#[test]
fn many_blocks() {
    let (seeds, tree) = sample();
    let seeds: Vec<Seed> = (0..2000)
        .flat_map(|round| seeds.iter().map(move |seed| (round, seed)))
        .map(|(round, seed)| Seed { numbers: seed.numbers.map(|n| n + 24 * round), ..seed.clone() })
        .collect();
    let bytes = record(&seeds, &tree);
    let mut reader = TraceReader::new(&bytes[..]).unwrap();
    let mut last = 0;
    for seed in &seeds {
        let expected = seed.event(last);
        last = expected.seq;
        assert_eq!(reader.next().unwrap(), Some(expected));
    }
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn a_huge_event_spans_frames() {
    let mut noise = 1u32;
    let data: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 24) as u8
    })
    .take(3 << 20)
    .collect();
    let (mut seeds, tree) = sample();
    let huge = Seed { how: 0, bytes: data.clone(), ..seeds[9].clone() };
    seeds.insert(3, huge);
    let bytes = record(&seeds, &tree);
    let mut reader = TraceReader::new(&bytes[..]).unwrap();
    let mut found = false;
    reader
        .for_each(|event, _| {
            found |= matches!(event.what, What::FileWrite { data: read, .. } if read == data);
            Ok::<_, TraceError>(())
        })
        .unwrap();
    assert!(found);
    // A cut inside it is a cut as well, and costs the whole block: the events before it, too.
    assert!(matches!(read(&bytes[..1 << 20]), Err(TraceError::Truncated { events_read: 0, .. })));
}

#[test]
fn a_file_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.pmvet");
    let (seeds, tree) = sample();
    let mut writer = TraceWriter::create(&path, &header()).unwrap();
    writer.write(&seeds[0].event(0), &tree).unwrap();
    writer.flush().unwrap();
    let cut = TraceReader::open(&path).unwrap().for_each(|_, _| Ok::<_, TraceError>(())).unwrap_err();
    assert!(matches!(cut, TraceError::Truncated { events_read: 1, .. }), "{cut}");
    writer.write(&seeds[1].event(1), &tree).unwrap();
    writer.finish(&end()).unwrap();
    let mut reader = TraceReader::open(&path).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), seeds[0].event(0));
    assert_eq!(reader.next().unwrap().unwrap(), seeds[1].event(1));
    assert!(reader.next().unwrap().is_none());

    let missing = TraceReader::open(dir.path().join("none")).unwrap_err().to_string();
    assert!(missing.starts_with("cannot open ") && missing.contains("none: "), "{missing}");
    let directory = TraceWriter::create(dir.path(), &header()).unwrap_err().to_string();
    assert!(directory.starts_with("cannot create "), "{directory}");
}

// ---------------------------------------------------------------------------------------------------------------------
// What is not a whole trace is refused

#[test]
fn a_cut_anywhere_is_noticed() {
    let (seeds, tree) = sample();
    let bytes = record(&seeds, &tree);
    assert_eq!(read(&bytes).unwrap(), seeds.len() as u64);
    assert!(matches!(read(&[]), Err(TraceError::NotATrace { .. })));
    for len in 1..bytes.len() {
        match read(&bytes[..len]).unwrap_err() {
            TraceError::Truncated { offset, .. } => assert_eq!(offset, len as u64),
            error => panic!("cut to {len} bytes: {error}"),
        }
    }
}

#[test]
fn a_damaged_byte_is_noticed() {
    let (seeds, tree) = sample();
    let bytes = record(&seeds, &tree);
    for at in 0..bytes.len() {
        for flip in [1, 2, 0x10, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            assert!(read(&damaged).is_err(), "byte {at} changed by {flip:#x}");
        }
    }
}

#[test]
fn lost_and_repeated_blocks_are_noticed() {
    let (seeds, tree) = sample();
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    let start = writer.file_bytes() as usize;
    let mut last = 0;
    // Blocks of the same size that are valid on their own: only their order can tell.
    let mut ends = vec![start];
    for _ in 0..4 {
        let event = seeds[16].event(last);
        last = event.seq;
        writer.write(&event, &tree).unwrap();
        writer.flush().unwrap();
        ends.push(writer.file_bytes() as usize);
    }
    let bytes = writer.finish(&end()).unwrap();
    assert_eq!(read(&bytes).unwrap(), 4);
    for (n, pair) in ends.windows(2).enumerate() {
        let (from, to) = (pair[0], pair[1]);
        let lost = [&bytes[..from], &bytes[to..]].concat();
        assert!(matches!(read(&lost), Err(TraceError::Corrupt { .. })), "block {n} lost");
        let repeated = [&bytes[..to], &bytes[from..]].concat();
        assert!(matches!(read(&repeated), Err(TraceError::Corrupt { .. })), "block {n} repeated");
    }
    let appended = [&bytes[..], b"\n"].concat();
    assert!(matches!(read(&appended), Err(TraceError::Corrupt { .. })));
}

#[test]
fn an_error_stays_an_error() {
    let (seeds, tree) = sample();
    let bytes = record(&seeds, &tree);
    let mut reader = TraceReader::new(&bytes[..bytes.len() - 1]).unwrap();
    while let Ok(event) = reader.next() {
        assert!(event.is_some());
    }
    assert!(reader.next().is_err());
    assert!(reader.end().is_none());
}

#[test]
fn foreign_files_are_named() {
    let cases: [(&[u8], &str); 6] = [
        (b"", "empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0", "ELF"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "gzip"),
        (b"{\"events\": []}", "text"),
        (b"\0\0\0\0\0\0\0\0\0\0", "00, 00"),
        (b"\x89PNG\r\n\x1a\n", "89, 50"),
    ];
    for (bytes, word) in cases {
        let error = read(bytes).unwrap_err();
        assert!(matches!(error, TraceError::NotATrace { .. }));
        let message = error.to_string();
        assert!(message.starts_with("not a pmvet trace: ") && message.contains(word), "{message}");
    }
}

#[test]
fn a_newer_version_says_what_it_needs() {
    let mut bytes = b"\x89PMVET\r\n".to_vec();
    bytes.extend_from_slice(&(VERSION + 6).to_le_bytes());
    bytes.extend_from_slice(b"\x059.8.7");
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes.extend_from_slice(b"whatever such a version has here");
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, TraceError::Version { found, supported: VERSION, .. } if found == VERSION + 6), "{error}");
    assert!(error.to_string().contains("use pmvet 9.8.7, which wrote it, or a newer one"), "{error}");
}

/// Puts a block with valid checksums around `payload`, which is how damage gets past them.
fn forge(kind: u8, raw: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = TraceWriter::new(Vec::new(), &header()).unwrap().finish(&end()).unwrap();
    let start = TraceWriter::new(Vec::new(), &header()).unwrap().file_bytes() as usize;
    bytes.truncate(start);
    // The checksum before is that of the header, whose frame starts after the preamble of 22 bytes.
    let before = u32::from_le_bytes(bytes[22 + 10..22 + 14].try_into().unwrap());
    let mut head = vec![kind, u8::from(raw as usize != payload.len())];
    head.extend_from_slice(&raw.to_le_bytes());
    head.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let mut crc = crc32fast::Hasher::new_with_initial(before);
    crc.update(&head);
    crc.update(payload);
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(&crc.finalize().to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn a_forged_length_allocates_nothing() {
    for raw in [0, 1 << 20, u32::MAX] {
        assert!(matches!(read(&forge(b'E', raw, b"abc")), Err(TraceError::Corrupt { .. })));
    }
    // A store of 2^60 bytes, as they are and as zeros.
    for control in [0, 1] {
        let event = [0x10, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, control];
        let error = read(&forge(b'E', event.len() as u32, &event)).unwrap_err();
        assert!(matches!(error, TraceError::Corrupt { .. }), "{error}");
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(read(&bytes).is_err());
        let with_magic = [b"\x89PMVET\r\n", &bytes[..]].concat();
        prop_assert!(read(&with_magic).is_err());
    }

    /// Past the checksum, into the decoder: no end record follows, so that it can never be a clean end.
    #[test]
    fn random_blocks_are_refused(
        bytes in vec(prop_oneof![any::<u8>(), Just(0x03), Just(0x07), Just(0x0b), Just(0x0f), 0..3u8], 1..300),
        kind in prop_oneof![8 => Just(b'E'), 1 => Just(b'Z'), 1 => Just(b'H')],
    ) {
        prop_assert!(read(&forge(kind, bytes.len() as u32, &bytes)).is_err());
        prop_assert!(read(&forge(kind, 1 + 2 * bytes.len() as u32, &bytes)).is_err());
    }

    /// The same, close to what a writer writes: an uncompressed block of real events with some bytes changed.
    #[test]
    fn changed_blocks_do_no_harm(
        seeds in vec(seed(), 1..40), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let bytes = record(&seeds, &Tree::default());
        let start = TraceWriter::new(Vec::new(), &header()).unwrap().file_bytes() as usize;
        let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (compressed, raw, stored) = (bytes[start + 1] & 1 != 0, length(start + 2), length(start + 6));
        let stored = &bytes[start + 14..start + 14 + stored];
        let mut block =
            if compressed { lz4_flex::block::decompress(stored, raw).unwrap() } else { stored.to_vec() };
        for (at, byte) in changes {
            let at = at.index(block.len());
            block[at] = byte;
        }
        prop_assert!(read(&forge(b'E', block.len() as u32, &block)).is_err());
    }
}

/// A disk with this many bytes left.
#[derive(Debug)]
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let len = bytes.len().min(self.0);
        self.0 -= len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let (seeds, tree) = sample();
    let needed = record(&seeds, &tree).len();
    let write = |room| -> Result<(), TraceError> {
        let mut writer = TraceWriter::new(Disk(room), &header())?;
        let mut last = 0;
        let mut failed = false;
        for seed in &seeds {
            let event = seed.event(last);
            last = event.seq;
            writer.write(&event, &tree)?;
            // The disk may have room again later, but what is lost stays lost.
            failed |= room % 2 == 0 && room < needed && writer.flush().is_err();
        }
        let done = writer.finish(&end());
        assert!(!failed || done.is_err());
        done.map(drop)
    };
    for room in 0..needed {
        let error = write(room).unwrap_err();
        assert!(matches!(error, TraceError::Io { action: "write", .. }), "{error}");
    }
    write(needed).unwrap();
}
