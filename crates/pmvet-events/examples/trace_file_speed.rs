//! How small and how fast a trace file is: `cargo run --release --example trace_file_speed`.
//!
//! The workload is a chained hash map in PM with an undo log, under random insertions: each transaction logs the bucket,
//! allocates and fills a node, links it, updates the element count and drops the log, with a flush and a fence after
//! each step. Addresses and values are those that such a program has.

use std::hint::black_box;
use std::time::Duration;

use pmvet_events::event::{FenceKind, FlushKind, StoreKind};
use pmvet_events::file::{TraceEnd, TraceError, TraceHeader, TraceReader, TraceWriter};
use pmvet_events::*;

const BASE: u64 = 0x7f12_3400_0000;
const BUCKETS: u64 = 1 << 16;
const TRANSACTIONS: u64 = 400_000;

#[derive(Clone, Copy)]
enum Op {
    Store(u64, u64, usize),
    Load(u64, u32),
    Flush(u64),
    Fence,
}

#[derive(Clone, Copy)]
struct Step {
    thread: u32,
    site: u32,
    context: u32,
    op: Op,
}

/// As many sites and contexts as the workload asks for.
struct Anywhere;

impl Places for Anywhere {
    fn site(&self, id: SiteId) -> Option<Site> {
        (id.0 != 0).then(|| Site { pc: 0x1200 + 7 * u64::from(id.0), module: ModuleId(1) })
    }

    fn context(&self, id: ContextId) -> Option<Context> {
        (id.0 != 0).then(|| Context { parent: ContextId(id.0 - 1), call: SiteId(100 + id.0) })
    }
}

struct Run {
    steps: Vec<Step>,
    random: u64,
    loads: bool,
    thread: u32,
}

impl Run {
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn put(&mut self, site: u32, context: u32, op: Op) {
        if self.loads || !matches!(op, Op::Load(..)) {
            self.steps.push(Step { thread: self.thread, site, context, op });
        }
    }

    /// `persist` is one function: the same instructions under many contexts.
    fn persist(&mut self, context: u32, addr: u64, len: u64) {
        for line in (addr & !63..addr + len).step_by(64) {
            self.put(40, context, Op::Flush(line));
        }
        self.put(41, context, Op::Fence);
    }
}

/// Two transactions of one thread follow each other, then two of the next thread.
fn workload(threads: u32, loads: bool) -> Vec<Step> {
    let mut run = Run { steps: Vec::new(), random: 88_172_645_463_325_252, loads, thread: 1 };
    let mut buckets = vec![0u64; BUCKETS as usize];
    let mut nodes = std::collections::HashMap::new();
    let mut heap = BASE + (1 << 24);
    for n in 0..TRANSACTIONS {
        run.thread = 1 + (n as u32 / 2) % threads;
        let log = BASE + 4096 * u64::from(run.thread);
        let key = run.random();
        let value = run.random() % 1000;
        let index = key % BUCKETS;
        let bucket = BASE + (1 << 20) + 8 * index;

        run.put(1, 2, Op::Load(bucket, 8));
        let mut node = buckets[index as usize];
        while node != 0 {
            run.put(2, 2, Op::Load(node, 8));
            run.put(3, 2, Op::Load(node + 16, 8));
            node = nodes.get(&node).copied().unwrap_or(0);
        }
        run.put(4, 4, Op::Load(log, 8));
        run.put(5, 4, Op::Store(log + 64, bucket - BASE, 8));
        run.put(6, 4, Op::Store(log + 72, 8, 4));
        run.put(7, 4, Op::Store(log + 80, buckets[index as usize], 8));
        run.persist(5, log + 64, 24);
        run.put(8, 4, Op::Store(log, 1, 8));
        run.persist(6, log, 8);

        run.put(10, 8, Op::Load(BASE + 128, 8));
        heap += 32 + 16 * (run.random() % 3);
        run.put(10, 8, Op::Store(BASE + 128, heap - BASE, 8));
        run.persist(9, BASE + 128, 8);
        run.put(20, 3, Op::Store(heap, key, 8));
        run.put(21, 3, Op::Store(heap + 8, value, 8));
        run.put(22, 3, Op::Store(heap + 16, buckets[index as usize], 8));
        run.put(23, 3, Op::Store(heap + 24, 1, 1));
        run.persist(10, heap, 25);
        run.put(24, 3, Op::Store(bucket, heap, 8));
        run.persist(11, bucket, 8);
        nodes.insert(heap, buckets[index as usize]);
        buckets[index as usize] = heap;

        run.put(25, 3, Op::Load(BASE + 64, 8));
        run.put(25, 3, Op::Store(BASE + 64, n + 1, 8));
        run.persist(12, BASE + 64, 8);
        run.put(30, 4, Op::Store(log, 0, 8));
        run.persist(13, log, 8);
    }
    run.steps
}

/// Processor time of this thread: unlike wall-clock time, it does not depend on what else runs.
fn used() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|used| used.parse().ok()).unwrap_or(0))
}

fn measure(name: &str, steps: &[Step], keep: impl Fn(&Op) -> bool) -> Result<(), TraceError> {
    let steps: Vec<_> = steps.iter().filter(|step| keep(&step.op)).collect();
    let header = TraceHeader { command: vec!["map".into()], pmvet_version: "0".into(), loads: true };
    let start = used();
    let mut writer = TraceWriter::new(Vec::with_capacity(64 << 20), &header)?;
    let mut seq = 0;
    for step in &steps {
        let bytes;
        let what = match step.op {
            Op::Store(addr, value, size) => {
                bytes = value.to_le_bytes();
                What::Store { addr, value: &bytes[..size], how: StoreKind::Regular }
            }
            Op::Load(addr, size) => What::Load { addr, size },
            Op::Flush(addr) => What::Flush { addr, how: FlushKind::Clwb, pm: true },
            Op::Fence => What::Fence { how: FenceKind::Sfence },
        };
        seq += u64::from(what.is_numbered());
        let (thread, site, context) = (ThreadId(step.thread), SiteId(step.site), ContextId(step.context));
        writer.write(&Event { seq, thread, site, context, what }, &Anywhere)?;
    }
    let (events, raw) = (writer.events(), writer.raw_bytes());
    let file = writer.finish(&TraceEnd::default())?;
    let encoded = used() - start;

    let start = used();
    let mut reader = TraceReader::new(&file[..])?;
    while let Some(event) = reader.next()? {
        black_box(&event);
    }
    let decoded = used() - start;

    let each = |bytes: u64| bytes as f64 / events as f64;
    let rate = |time: Duration| events as f64 / time.as_secs_f64() / 1e6;
    println!(
        "{name:32} {events:9} events  {:5.2} bytes raw  {:5.2} in the file  {:6.1} M/s written  {:6.1} M/s read",
        each(raw),
        each(file.len() as u64),
        rate(encoded),
        rate(decoded),
    );
    Ok(())
}

fn main() -> Result<(), TraceError> {
    for threads in [1, 4] {
        let steps = workload(threads, true);
        measure(&format!("{threads} threads, all"), &steps, |_| true)?;
        measure(&format!("{threads} threads, without loads"), &steps, |op| !matches!(op, Op::Load(..)))?;
        measure(&format!("{threads} threads, loads only"), &steps, |op| matches!(op, Op::Load(..)))?;
        measure(&format!("{threads} threads, 8-byte stores only"), &steps, |op| matches!(op, Op::Store(_, _, 8)))?;
    }
    Ok(())
}
