//! How fast the model takes events: `cargo run --release -p pmvet-model --example rate`.
//!
//! A tree-like workload: each operation stores 20 words to 5 lines of a 64 MiB file, flushes the lines and fences.

use std::time::Instant;

use pmvet_events::event::{Event, FenceKind, FlushKind, StoreKind, What};
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_model::{LineContent, LineId, LineSource, Mode, Model, Unknown};

const BASE: u64 = 0x2000_0000_0000;
const SIZE: u64 = 64 << 20;
const STORES: u64 = 10_000_000;

struct Zeros;

impl LineSource for Zeros {
    fn line(&self, _line: LineId) -> LineContent {
        LineContent::new([0; 64])
    }
}

fn main() {
    println!("without contents: {:.2} s for {STORES} stores", run(&Unknown));
    println!("with contents:    {:.2} s for {STORES} stores", run(&Zeros));
}

fn run(before: &impl LineSource) -> f64 {
    let mut model = Model::new(Mode::Adr);
    let mut seq = 0;
    let mut send = |what: What<'_>| {
        seq += 1;
        model.event(&Event { seq, thread: ThreadId(1), site: SiteId(1), context: ContextId(1), what }, before);
    };
    send(What::ProcessStart { process: 1, parent: 0, path: "".as_ref() });
    send(What::Map { file: FileId(1), addr: BASE, len: SIZE, offset: 0, writable: true });
    let start = Instant::now();
    let mut random = 1u64;
    for _ in 0..STORES / 20 {
        let mut lines = [0; 5];
        for line in &mut lines {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            *line = BASE + (random >> 33) % (SIZE / 64) * 64;
            for word in 0..4 {
                send(What::Store { addr: *line + word * 8, value: &random.to_le_bytes(), how: StoreKind::Regular });
            }
        }
        for addr in lines {
            send(What::Flush { addr, how: FlushKind::Clwb, pm: true });
        }
        send(What::Fence { how: FenceKind::Sfence });
    }
    start.elapsed().as_secs_f64()
}
