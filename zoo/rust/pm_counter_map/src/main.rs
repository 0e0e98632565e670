//! A persistent open-addressing map whose slots carry their own commit flag, and a persistent counter of mutations.
//!
//! A slot is three lines: one with its meta word and key, and two value buffers. The meta word packs the slot's
//! version, the buffer in use and its state, so that one 8-byte store commits an insert, an update or a removal; the
//! value goes to the buffer not in use, and is durable before. The counter follows in a second step, so after a crash
//! it may be one behind the slots, and recovery catches it up.
//!
//! Invariants: the versions of all slots and the area's base add up to the counter; a live slot's value is a function
//! of its key and version; every key is found where it is stored.
//!
//! A removed slot keeps its key until the area fills up. Then the live slots move to the other area, and a switch of
//! the active area commits the move.

use std::process::ExitCode;
use std::sync::Mutex;
use zoo_pm::{bug_number, mix, run, Opts, Pool, Rng, LINE, WORD};

const BUG: u32 = bug_number(option_env!("ZOO_BUG"));

const POOL_LEN: usize = 256 * 1024;
const MAGIC: u64 = u64::from_le_bytes(*b"pmcntmap");

// Header words, each in a line of its own.
const MAGIC_AT: usize = 0;
const COUNTER_AT: usize = LINE;
const ACTIVE_AT: usize = 2 * LINE;
const HITS_AT: usize = 3 * LINE;

// Two areas, each a line with its base count and then the slots.
const AREAS_AT: usize = 4096;
const SLOTS: usize = 64;
const SLOT_LEN: usize = 3 * LINE;
const AREA_LEN: usize = LINE + SLOTS * SLOT_LEN;

const KEYS: u64 = 96;
const MAX_LIVE: usize = 32;
/// Slots in use, live or dead, at which an area is rebuilt: probes must end at an empty slot.
const MAX_USED: usize = 48;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Empty,
    Live,
    Dead,
}

/// A slot's commit word.
#[derive(Clone, Copy)]
struct Meta {
    version: u64,
    buffer: usize,
    state: State,
}

impl Meta {
    fn decode(word: u64) -> Result<Self, String> {
        let state = match word & 3 {
            0 if word == 0 => State::Empty,
            1 => State::Live,
            2 => State::Dead,
            _ => return Err(format!("bad meta word {word:#x}")),
        };
        Ok(Self { version: word >> 3, buffer: (word >> 2 & 1) as usize, state })
    }

    fn encode(self) -> u64 {
        self.version << 3 | (self.buffer as u64) << 2 | self.state as u64
    }
}

fn value_word(key: u64, version: u64, i: usize) -> u64 {
    mix(key << 48 ^ version << 8 ^ i as u64)
}

fn area_at(area: usize) -> usize {
    AREAS_AT + area * AREA_LEN
}

struct Map<'p> {
    pool: &'p Pool,
    area: usize,
    live: usize,
    used: usize,
}

/// What a walk over all slots finds.
struct Census {
    live: usize,
    used: usize,
    /// Mutations that the slots account for.
    mutations: u64,
    digest: u64,
}

impl<'p> Map<'p> {
    /// Opens the map in a pool, or makes one where the magic number is missing, and recovers it.
    fn open(pool: &'p Pool) -> Result<Self, String> {
        if pool.load(MAGIC_AT) != MAGIC {
            Self::format(pool);
        }
        let area = pool.load(ACTIVE_AT);
        if area > 1 {
            return Err(format!("active area {area}"));
        }
        let mut map = Self { pool, area: area as usize, live: 0, used: 0 };
        let census = map.census()?;
        let counter = pool.load(COUNTER_AT);
        if census.mutations == counter.wrapping_add(1) {
            // The crash came between the commit of a slot and its count.
            // BUG(6): the counter is left behind
            if BUG != 6 {
                pool.store(COUNTER_AT, census.mutations);
                pool.persist(COUNTER_AT, WORD);
            }
        } else if census.mutations != counter {
            return Err(format!("counter {counter}, but the slots account for {}", census.mutations));
        }
        (map.live, map.used) = (census.live, census.used);
        Ok(map)
    }

    fn format(pool: &Pool) {
        let words = [COUNTER_AT, ACTIVE_AT, area_at(0)];
        let metas = (0..SLOTS).map(|slot| area_at(0) + LINE + slot * SLOT_LEN);
        // A new file is zero already, and needs no fence either.
        let stale: Vec<_> = words.into_iter().chain(metas).filter(|&at| pool.load(at) != 0).collect();
        for &at in &stale {
            pool.store(at, 0);
            pool.flush(at, WORD);
        }
        if !stale.is_empty() {
            pool.fence();
        }
        pool.store(MAGIC_AT, MAGIC);
        pool.persist(MAGIC_AT, WORD);
    }

    fn slot_at(&self, slot: usize) -> usize {
        area_at(self.area) + LINE + slot * SLOT_LEN
    }

    fn meta(&self, slot: usize) -> Result<Meta, String> {
        Meta::decode(self.pool.load(self.slot_at(slot)))
    }

    fn key(&self, slot: usize) -> u64 {
        self.pool.load(self.slot_at(slot) + WORD)
    }

    fn value_at(&self, slot: usize, buffer: usize) -> usize {
        self.slot_at(slot) + LINE * (1 + buffer)
    }

    /// The slot of a key, or the empty slot where it would go.
    fn find(&self, key: u64) -> Result<(usize, Meta), String> {
        let start = mix(key) as usize % SLOTS;
        for slot in (start..SLOTS).chain(0..start) {
            let meta = self.meta(slot)?;
            if meta.state == State::Empty || self.key(slot) == key {
                return Ok((slot, meta));
            }
        }
        Err(format!("no empty slot in the way of key {key}"))
    }

    fn check_value(&self, slot: usize, meta: Meta) -> Result<(), String> {
        let key = self.key(slot);
        let at = self.value_at(slot, meta.buffer);
        for i in 0..LINE / WORD {
            if self.pool.load(at + i * WORD) != value_word(key, meta.version, i) {
                return Err(format!("key {key}: word {i} of its value is not of version {}", meta.version));
            }
        }
        Ok(())
    }

    /// Walks all slots and checks what must hold at any time, crash or not.
    fn census(&self) -> Result<Census, String> {
        let mut census = Census { live: 0, used: 0, mutations: self.pool.load(area_at(self.area)), digest: 0 };
        for slot in 0..SLOTS {
            let meta = self.meta(slot)?;
            if meta.state == State::Empty {
                continue;
            }
            let key = self.key(slot);
            if key == 0 || key > KEYS || self.find(key)?.0 != slot {
                return Err(format!("slot {slot}: key {key} does not belong there"));
            }
            census.used += 1;
            census.mutations = census.mutations.wrapping_add(meta.version);
            if meta.state == State::Live {
                self.check_value(slot, meta)?;
                census.live += 1;
                census.digest ^= mix(key << 32 ^ meta.version);
            }
        }
        if census.live > MAX_LIVE || census.used > MAX_USED {
            return Err(format!("{} live keys in {} slots", census.live, census.used));
        }
        Ok(census)
    }

    /// Checks everything, with no operation under way.
    fn verify(&self) -> Result<Census, String> {
        let census = self.census()?;
        let counter = self.pool.load(COUNTER_AT);
        if (census.mutations, census.live, census.used) != (counter, self.live, self.used) {
            return Err(format!(
                "counted {} mutations, {} live keys, {} slots, but expected {counter}, {}, {}",
                census.mutations, census.live, census.used, self.live, self.used
            ));
        }
        Ok(census)
    }

    /// Makes a slot's next state durable, and then the count of it.
    fn commit(&self, slot: usize, meta: Meta) {
        let at = self.slot_at(slot);
        // BUG(3): the counter runs ahead of the slot, which recovery does not expect
        if BUG == 3 {
            self.count(); // BLAME(3)
        }
        self.pool.store(at, meta.encode()); // BLAME(2, 6, 14)
        self.pool.flush(at, WORD); // BLAME(14)
                                   // BUG(14): without this fence the count may be durable before the slot
        if BUG != 14 {
            self.pool.fence();
        }
        if BUG != 3 {
            self.count(); // BLAME(14)
        }
        // BUG(10): nothing is left to wait for
        if BUG == 10 {
            self.pool.fence(); // BLAME(10)
        }
    }

    fn count(&self) {
        self.pool.store(COUNTER_AT, self.pool.load(COUNTER_AT) + 1); // BLAME(3, 13, 14)
                                                                     // BUG(13): the count is persisted by `step` after the lock is released: another thread may commit in between
        if BUG != 13 {
            self.pool.persist(COUNTER_AT, WORD);
        }
    }

    /// Stores the value of the slot's next version where no reader looks yet, and commits it.
    fn put(&self, slot: usize, key: u64, old: Meta) {
        // BUG(4): the value in use is overwritten, which no crash may interrupt
        let buffer = if BUG == 4 { old.buffer } else { 1 - old.buffer }; // BLAME(4)
        let new = Meta { version: old.version + 1, buffer, state: State::Live };
        let at = self.value_at(slot, buffer);
        // BUG(11): every word is stored twice before it is ever persisted
        if BUG == 11 {
            (0..LINE / WORD).for_each(|i| self.pool.store(at + i * WORD, 0)); // BLAME(11)
        }
        for i in 0..LINE / WORD {
            self.pool.store(at + i * WORD, value_word(key, new.version, i)); // BLAME(1, 2, 4, 11)
        }
        // BUG(1): the value is not flushed before it is committed
        if BUG != 1 {
            self.pool.flush(at, LINE); // BLAME(2)
        }
        // BUG(9): a second flush of a line that did not change
        if BUG == 9 {
            self.pool.flush(at, LINE); // BLAME(9)
        }
        // BUG(2): without this fence the commit may be durable before the value
        if BUG != 2 {
            self.pool.fence();
        }
        self.commit(slot, new); // BLAME(2)
    }

    /// Inserts a key that is not live, if there is room; tells whether it did.
    fn insert(&mut self, key: u64) -> Result<bool, String> {
        let (mut slot, mut meta) = self.find(key)?;
        if meta.state == State::Live || self.live == MAX_LIVE {
            return Ok(false);
        }
        if meta.state == State::Empty {
            if self.used == MAX_USED {
                self.rebuild()?;
                (slot, meta) = self.find(key)?;
            }
            // The key needs no flush of its own: it shares its line with the commit, which follows it.
            self.pool.store(self.slot_at(slot) + WORD, key);
            self.used += 1;
        }
        self.put(slot, key, meta);
        self.live += 1;
        Ok(true)
    }

    /// Gives a live key its next value.
    fn update(&self, key: u64) -> Result<bool, String> {
        let (slot, meta) = self.find(key)?;
        self.put(slot, key, meta);
        Ok(true)
    }

    /// Removes a live key.
    fn remove(&mut self, key: u64) -> Result<bool, String> {
        let (slot, meta) = self.find(key)?;
        let next = Meta { version: meta.version + 1, ..meta };
        // BUG(5): the version changes before the state: a removal in two steps
        if BUG == 5 {
            self.pool.store(self.slot_at(slot), next.encode()); // BLAME(5)
            self.pool.persist(self.slot_at(slot), WORD); // BLAME(5)
        }
        self.commit(slot, Meta { state: State::Dead, ..next });
        self.live -= 1;
        Ok(true)
    }

    /// Reads and checks a value; false, because it changes nothing.
    fn get(&self, key: u64) -> Result<bool, String> {
        let (slot, meta) = self.find(key)?;
        // BUG(12): a statistic that nobody recovers has no place in persistent memory
        if BUG == 12 {
            self.pool.store(HITS_AT, self.pool.load(HITS_AT) + 1); // BLAME(12)
        }
        self.check_value(slot, meta)?;
        Ok(false)
    }

    /// A live key, the first from a slot on, so that few operations of the workload miss.
    fn any_key(&self, from: u64) -> Result<Option<u64>, String> {
        let from = from as usize % SLOTS;
        for slot in (from..SLOTS).chain(0..from) {
            if self.meta(slot)?.state == State::Live {
                return Ok(Some(self.key(slot)));
            }
        }
        Ok(None)
    }

    /// Moves the live slots to the other area; what the dead ones counted goes into its base.
    fn rebuild(&mut self) -> Result<(), String> {
        let pool = self.pool;
        let to = Self { pool, area: 1 - self.area, live: self.live, used: self.live };
        // Planned in DRAM, so that each word is stored once.
        let mut plan = [None; SLOTS];
        let mut base = pool.load(area_at(self.area));
        for slot in 0..SLOTS {
            let meta = self.meta(slot)?;
            if meta.state == State::Live {
                let start = mix(self.key(slot)) as usize % SLOTS;
                let free = (start..SLOTS).chain(0..start).find(|&new| plan[new].is_none());
                plan[free.ok_or("more keys than slots")?] = Some((slot, meta));
            } else {
                base += meta.version;
            }
        }
        // BUG(7): the new area is made active before it is filled
        if BUG == 7 {
            to.activate(); // BLAME(7)
        }
        for (slot, planned) in plan.into_iter().enumerate() {
            let at = to.slot_at(slot);
            if let Some((old, meta)) = planned {
                let (source, target) = (self.value_at(old, meta.buffer), to.value_at(slot, 0));
                for i in 0..LINE / WORD {
                    pool.store(target + i * WORD, pool.load(source + i * WORD));
                }
                pool.flush(target, LINE);
                pool.store(at + WORD, self.key(old));
                pool.store(at, Meta { buffer: 0, ..meta }.encode());
            } else if pool.load(at) == 0 {
                continue;
            } else {
                pool.store(at, 0);
            }
            pool.flush(at, LINE);
        }
        pool.store(area_at(to.area), base); // BLAME(8)
                                            // BUG(8): the base count is not flushed before the area is active
        if BUG != 8 {
            pool.flush(area_at(to.area), WORD);
        }
        pool.fence();
        if BUG != 7 {
            to.activate();
        }
        *self = to;
        Ok(())
    }

    fn activate(&self) {
        self.pool.store(ACTIVE_AT, self.area as u64); // BLAME(7)
        self.pool.persist(ACTIVE_AT, WORD);
    }
}

/// One operation of the workload.
fn step(map: &Mutex<Map>, shares: &[u64; 4], rng: &mut Rng) -> Result<(), String> {
    let (op, random) = (rng.pick(shares), rng.word());
    let mut map = map.lock().expect("no thread panics with the lock held");
    let mutated = match (op, map.any_key(random)?) {
        (0, _) => map.insert(1 + random % KEYS)?,
        (1, Some(key)) => map.update(key)?,
        (2, Some(key)) => map.remove(key)?,
        (_, Some(key)) => map.get(key)?,
        (_, None) => false,
    };
    let pool = map.pool;
    drop(map);
    if BUG == 13 && mutated {
        pool.persist(COUNTER_AT, WORD);
    }
    Ok(())
}

fn program(opts: &Opts) -> Result<String, String> {
    // Insert, update, remove, get.
    let shares = opts.shares([45, 20, 25, 10])?;
    let pool = Pool::open(&opts.pool, POOL_LEN).map_err(|e| format!("{}: {e}", opts.pool.display()))?;
    let map = Mutex::new(Map::open(&pool)?);
    opts.run_ops(|rng| step(&map, &shares, rng))?;
    let map = map.into_inner().expect("no thread panics with the lock held");
    let census = map.verify()?;
    Ok(format!(
        "pm_counter_map: {} mutations, {} live keys in {} slots of area {}, digest {:016x}",
        census.mutations, census.live, census.used, map.area, census.digest
    ))
}

fn main() -> ExitCode {
    run(program)
}
