//! A persistent record journal: a ring of checksummed records between two alternating superblocks.
//!
//! An append is durable when it returns: its record counts as soon as its checksum is right, so it takes a single
//! fence and no commit store. A superblock says where the oldest record is and up to which sequence number records
//! must be there; it is written to the older of the two places, so one of them is always whole. Truncating the journal
//! is writing a superblock with a later head. Space is reused only after the superblock that frees it is durable.
//!
//! Recovery takes the newer superblock whose checksum is right, and walks the records from its head to the first that
//! is not the next in sequence or not whole: that is the tail. It writes nothing.
//!
//! A record's length and payload are functions of its sequence number; a superblock's digest and tallies of the
//! truncated records are too.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Mutex;
use zoo_pm::{bug_number, crc32, mix, run, Opts, Pool, Rng, LINE, WORD};

const BUG: u32 = bug_number(option_env!("ZOO_BUG"));

const POOL_LEN: usize = 256 * 1024;
const MAGIC: u64 = u64::from_le_bytes(*b"pmjournl");

const MAGIC_AT: usize = 0;
const CURSOR_AT: usize = LINE;
const SUPERS_AT: usize = 4096;
const RING_AT: usize = 8192;
/// Words in the ring.
const RING: usize = 512;

const SUPER_WORDS: usize = 16;
const TALLIES: usize = 7;

/// The length that says: the record goes on at the start of the ring.
const WRAP: u64 = 0xffff;
const MAX_PAYLOAD: u64 = 12;
/// Bounds the walk over what was truncated; far beyond what a workload reaches.
const MAX_SEQ: u64 = 1 << 26;

/// A superblock, in the order of its words.
#[derive(Clone, Debug, PartialEq)]
struct Super {
    generation: u64,
    /// The word of the ring where the oldest record is, and its sequence number.
    head: usize,
    head_seq: u64,
    /// Records up to this one are durable.
    synced: u64,
    /// Of the truncated records.
    digest: u64,
    tallies: [u64; TALLIES],
}

impl Super {
    fn encode(&self) -> [u64; SUPER_WORDS] {
        let mut words = [0; SUPER_WORDS];
        words[..5].copy_from_slice(&[self.generation, self.head as u64, self.head_seq, self.synced, self.digest]);
        words[8..15].copy_from_slice(&self.tallies);
        words[15] = crc32(&words[..15]).into();
        words
    }

    fn at(place: u64) -> usize {
        SUPERS_AT + place as usize * SUPER_WORDS * WORD
    }

    /// The superblock in a place, if it is whole.
    fn load(pool: &Pool, place: u64) -> Option<Self> {
        let words: [u64; SUPER_WORDS] = std::array::from_fn(|i| pool.load(Self::at(place) + i * WORD));
        let found = Self {
            generation: words[0],
            head: words[1] as usize,
            head_seq: words[2],
            synced: words[3],
            digest: words[4],
            tallies: std::array::from_fn(|i| words[8 + i]),
        };
        // BUG(5): a superblock that was half written when the crash came is taken for whole
        (found.generation > 0 && (BUG == 5 || words == found.encode())).then_some(found)
    }

    fn write(&self, pool: &Pool) {
        // BUG(4): the superblock in use is overwritten
        let place = if BUG == 4 { 1 } else { self.generation % 2 }; // BLAME(4)
        let at = Self::at(place);
        let words = self.encode();
        // BUG(10): every word is stored twice before it is ever persisted
        if BUG == 10 {
            (0..SUPER_WORDS).for_each(|i| pool.store(at + i * WORD, 0)); // BLAME(10)
        }
        for (n, line) in words.chunks(LINE / WORD).enumerate() {
            for (i, &word) in line.iter().enumerate() {
                pool.store(at + n * LINE + i * WORD, word); // BLAME(2, 4, 5, 10)
            }
            // BUG(2): the second line of a superblock is not flushed
            if BUG != 2 || n == 0 {
                pool.flush(at + n * LINE, LINE);
            }
        }
        pool.fence();
    }

    fn check(&self) -> Result<(), String> {
        if self.head > RING || self.head_seq == 0 || self.head_seq > MAX_SEQ || self.synced < self.head_seq - 1 {
            return Err(format!("impossible {self:?}"));
        }
        let mut expected = Self { digest: 0, tallies: [0; TALLIES], ..self.clone() };
        (1..self.head_seq).for_each(|seq| expected.forget(seq));
        if expected != *self {
            return Err(format!("{self:?} does not account for what was truncated"));
        }
        Ok(())
    }

    /// Takes a truncated record into the digest and the tallies.
    fn forget(&mut self, seq: u64) {
        self.digest = self.digest.wrapping_add(mix(seq));
        self.tallies[seq as usize % TALLIES] += 1;
    }
}

/// A record's words: sequence number and length, checksum, payload.
fn record(seq: u64) -> Vec<u64> {
    let len = 1 + mix(seq) % MAX_PAYLOAD;
    let mut words = vec![seq << 16 | len, 0];
    words.extend((0..len).map(|i| mix(seq << 8 | i)));
    words[1] = crc32(&words).into();
    words
}

fn ring_at(word: usize) -> usize {
    RING_AT + word * WORD
}

/// The record or the wrap at a word of the ring, if it is the next in sequence and whole.
enum Found {
    Record(Vec<u64>),
    Wrap,
    Nothing,
}

fn find(pool: &Pool, word: usize, seq: u64) -> Found {
    if word == RING {
        return Found::Wrap;
    }
    let header = pool.load(ring_at(word));
    let (len, found_seq) = (header & 0xffff, header >> 16);
    if found_seq != seq {
        return Found::Nothing;
    }
    if len == WRAP {
        return Found::Wrap;
    }
    let words = 2 + len as usize;
    if len > MAX_PAYLOAD || word + words > RING {
        return Found::Nothing;
    }
    let mut found: Vec<u64> = (0..words).map(|i| pool.load(ring_at(word + i))).collect();
    let sum = std::mem::replace(&mut found[1], 0);
    // BUG(6): a record whose tail did not reach the medium is taken for whole
    if BUG != 6 && sum != crc32(&found).into() {
        return Found::Nothing;
    }
    found[1] = sum;
    Found::Record(found)
}

/// Where a record is in the ring, in words.
#[derive(Clone, Copy)]
struct Extent {
    start: usize,
    words: usize,
}

struct Journal<'p> {
    pool: &'p Pool,
    newest: Super,
    /// The records from the head on.
    live: VecDeque<Extent>,
    /// The word where the next record goes.
    tail: usize,
    next_seq: u64,
}

impl<'p> Journal<'p> {
    /// Opens the journal in a pool, or makes one where the magic number is missing, and recovers it.
    fn open(pool: &'p Pool) -> Result<Self, String> {
        if pool.load(MAGIC_AT) != MAGIC {
            Self::format(pool);
        }
        let newest = [0, 1].into_iter().filter_map(|place| Super::load(pool, place)).max_by_key(|s| s.generation);
        let newest = newest.ok_or("no superblock is whole")?;
        newest.check()?;
        Self::walk(pool, newest)
    }

    fn format(pool: &Pool) {
        // Whatever a crash in here left in the other place must not look newer.
        if pool.load(Super::at(0)) != 0 {
            pool.store(Super::at(0), 0);
            pool.flush(Super::at(0), WORD);
        }
        let first = Super { generation: 1, head: 0, head_seq: 1, synced: 0, digest: 0, tallies: [0; TALLIES] };
        // BUG(7): the pool claims to be a journal before it has a superblock
        if BUG == 7 {
            Self::claim(pool); // BLAME(7)
        }
        first.write(pool);
        if BUG != 7 {
            Self::claim(pool);
        }
    }

    fn claim(pool: &Pool) {
        pool.store(MAGIC_AT, MAGIC); // BLAME(7)
        pool.persist(MAGIC_AT, WORD);
    }

    /// Walks the records from the head to the tail and checks each.
    fn walk(pool: &'p Pool, newest: Super) -> Result<Self, String> {
        let (mut live, mut tail, mut next_seq) = (VecDeque::new(), newest.head, newest.head_seq);
        let mut wrapped = false;
        loop {
            match find(pool, tail, next_seq) {
                Found::Record(found) if found == record(next_seq) => {
                    live.push_back(Extent { start: tail, words: found.len() });
                    tail += found.len();
                    next_seq += 1;
                }
                Found::Record(_) => return Err(format!("record {next_seq} holds what was never written")),
                Found::Wrap if !wrapped => {
                    wrapped = true;
                    // The wrap alone, without the record behind it, does not move the tail.
                    if !matches!(find(pool, 0, next_seq), Found::Record(_)) {
                        break;
                    }
                    tail = 0;
                }
                _ => break,
            }
        }
        if next_seq <= newest.synced {
            return Err(format!("record {next_seq} is lost, though {} are durable", newest.synced));
        }
        Ok(Self { pool, newest, live, tail, next_seq })
    }

    fn is_free(&self, start: usize, words: usize) -> bool {
        self.live.iter().all(|r| start >= r.start + r.words || start + words <= r.start)
    }

    /// Where a record of so many words goes: at the tail or at the start of the ring; and whether there is room.
    fn place(&self, words: usize) -> (usize, bool) {
        if self.tail + words <= RING {
            return (self.tail, self.is_free(self.tail, words));
        }
        let room_for_wrap = self.tail == RING || self.is_free(self.tail, 1);
        (0, room_for_wrap && self.is_free(0, words))
    }

    fn append(&mut self) -> Result<(), String> {
        let record = record(self.next_seq);
        let (mut start, mut room) = self.place(record.len());
        // BUG(3): the room is reused before the superblock that frees it is written
        let late = BUG == 3 && !room;
        while !room {
            self.forget_half();
            if BUG != 3 {
                self.write_super()?;
            }
            (start, room) = self.place(record.len());
        }
        if start != self.tail && self.tail != RING {
            self.pool.store(ring_at(self.tail), self.next_seq << 16 | WRAP); // BLAME(3)
            self.pool.flush(ring_at(self.tail), WORD);
        }
        self.write_record(start, &record); // BLAME(3)
        self.live.push_back(Extent { start, words: record.len() });
        self.tail = start + record.len();
        self.next_seq += 1;
        // BUG(11): a cursor that recovery finds by itself has no place in persistent memory
        if BUG == 11 {
            self.pool.store(CURSOR_AT, self.tail as u64); // BLAME(11)
        }
        if late {
            self.write_super()?;
        }
        Ok(())
    }

    /// Makes a record durable.
    fn write_record(&self, start: usize, record: &[u64]) {
        let (at, len) = (ring_at(start), record.len() * WORD);
        // Short records are stored and flushed, long ones bypass the cache.
        let long = len > LINE;
        for (i, &word) in record.iter().enumerate() {
            if long {
                self.pool.stream(at + i * WORD, word); // BLAME(3, 6)
            } else {
                self.pool.store(at + i * WORD, word); // BLAME(3, 6, 12, 13)
            }
        }
        // BUG(13): the flush comes in `step`, after the lock is released: another thread may vouch for the record
        if !long && BUG != 13 {
            // BUG(12): a short record may lie in two lines
            let len = if BUG == 12 { WORD } else { len };
            self.pool.flush(at, len);
        }
        // BUG(8): non-temporal stores need no flush
        if BUG == 8 && long {
            self.pool.flush(at, len); // BLAME(8)
        }
        // BUG(1): without this fence a superblock may be durable before the records it vouches for
        if BUG != 1 && (BUG != 13 || long) {
            self.pool.fence();
        }
        // BUG(9): nothing is left to wait for
        if BUG == 9 {
            self.pool.fence(); // BLAME(9)
        }
    }

    /// Writes a superblock that vouches for all records, once the last reads back whole.
    fn write_super(&mut self) -> Result<(), String> {
        let last = self.next_seq - 1;
        if let Some(extent) = self.live.back() {
            if !matches!(find(self.pool, extent.start, last), Found::Record(_)) {
                return Err(format!("record {last} does not read back"));
            }
        }
        self.newest.generation += 1;
        self.newest.synced = last;
        self.newest.write(self.pool);
        Ok(())
    }

    /// Moves the head over half of the records; a superblock has to follow.
    fn forget_half(&mut self) {
        for _ in 0..self.live.len().div_ceil(2) {
            self.live.pop_front();
            self.newest.forget(self.newest.head_seq);
            self.newest.head_seq += 1;
        }
        self.newest.head = self.live.front().map_or(self.tail, |first| first.start);
    }

    /// Checks that the pool holds what this process believes.
    fn verify(&self) -> Result<(), String> {
        let found = Self::open(self.pool)?;
        if (&found.newest, found.tail, found.next_seq) != (&self.newest, self.tail, self.next_seq) {
            return Err(format!(
                "found {:?} and the tail {} at word {}, but expected {:?}, {}, {}",
                found.newest, found.next_seq, found.tail, self.newest, self.next_seq, self.tail
            ));
        }
        Ok(())
    }
}

/// One operation of the workload.
fn step(journal: &Mutex<Journal>, shares: &[u64; 3], rng: &mut Rng) -> Result<(), String> {
    let op = rng.pick(shares);
    let mut journal = journal.lock().expect("no thread panics with the lock held");
    match op {
        0 => journal.append()?,
        1 => journal.write_super()?,
        _ => {
            journal.forget_half();
            journal.write_super()?;
        }
    }
    let (pool, newest) = (journal.pool, journal.live.back().map(|extent| (extent.start, extent.words)));
    drop(journal);
    if let Some((start, words)) = newest.filter(|_| BUG == 13 && op == 0) {
        pool.flush(ring_at(start), words * WORD);
        pool.fence();
    }
    Ok(())
}

fn program(opts: &Opts) -> Result<String, String> {
    // Append, sync, truncate.
    let shares = opts.shares([85, 12, 3])?;
    let pool = Pool::open(&opts.pool, POOL_LEN).map_err(|e| format!("{}: {e}", opts.pool.display()))?;
    let journal = Mutex::new(Journal::open(&pool)?);
    opts.run_ops(|rng| step(&journal, &shares, rng))?;
    let journal = journal.into_inner().expect("no thread panics with the lock held");
    journal.verify()?;
    Ok(format!(
        "pm_journal: {} records, {} of them live, generation {}, digest {:016x}",
        journal.next_seq - 1,
        journal.live.len(),
        journal.newest.generation,
        journal.newest.digest
    ))
}

fn main() -> ExitCode {
    run(program)
}
