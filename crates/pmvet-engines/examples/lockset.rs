//! Reads a trace that was saved with loads and prints the races it shows, in short form.
//!
//!     pmvet trace --loads --save-trace F -- prog …
//!     cargo run --example lockset -- F [--no-irh] [--no-locks] [--no-alloc] [--no-window] [--all-pairs] [--no-edges]
//!                                     [--lock-free] [--published] [--deny FUNCTION] [--declare FUNCTION] [--stats]

use std::error::Error;
use std::time::Instant;

use pmvet_engines::lockset::{Edges, LocksetEngine, LocksetOptions};
use pmvet_engines::stacks::{Resolver, Stacks, Symbols, user_frame};
use pmvet_events::file::TraceReader;
use pmvet_events::{ContextId, SiteId};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut options, mut trace, mut stats) = (LocksetOptions::default(), None, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--no-irh" => options.init_removal = false,
            "--no-locks" => options.infer_locks = false,
            "--no-alloc" => options.allocators = false,
            "--no-window" => options.reader_window = false,
            "--no-edges" => options.edges = Edges::NONE,
            "--lock-free" => options.lock_free = true,
            "--published" => options = LocksetOptions::as_published(),
            "--deny" => options.deny.extend(args.next()),
            "--declare" => options.declare.extend(args.next()),
            "--stats" => stats = true,
            _ => trace = Some(arg),
        }
    }
    let mut reader = TraceReader::open(trace.ok_or("a trace is needed")?)?;
    let mut symbols = Symbols::default();
    let mut engine = LocksetEngine::new(options);
    let started = Instant::now();
    while let Some((event, _)) = reader.next_in_place()? {
        symbols.event(&event);
        engine.event(&event);
    }
    let seconds = started.elapsed().as_secs_f64();
    let outcome = engine.finish();
    let places = &reader;
    let mut stacks = symbols.with(places);
    for race in &outcome.races {
        let observed = if race.observed { ", observed" } else { "" };
        println!(
            "race: store {} (thread {}, locks {}), load {} (thread {}, locks {}), {:?} at {}{observed}, {} times, +{:#x}",
            place(&mut stacks, race.store.site, race.store.context),
            race.store.thread,
            race.kept.len(),
            place(&mut stacks, race.load.site, race.load.context),
            race.load.thread,
            race.load.locks.len(),
            race.fate,
            race.ended_by.map_or("the end".into(), |m| place(&mut stacks, m.site, m.context)),
            race.count,
            race.store.offset,
        );
    }
    for lock in &outcome.inferred {
        println!(
            "inferred: {} at {}: {} words, taken {} times, given back {}, disturbed {}, by {} threads",
            lock.shape.name(),
            place(&mut stacks, lock.site, ContextId(0)),
            lock.words,
            lock.acquired,
            lock.returned,
            lock.disturbed,
            lock.threads,
        );
    }
    for held in &outcome.held {
        let flushed = if held.flushed { "flushed while held" } else { "not flushed while held" };
        let at = place(&mut stacks, held.site, held.context);
        println!("in PM: lock +{:#x} taken at {at}, {flushed}, crash at {}", held.word.offset, held.crash_at);
    }
    if stats {
        let rate = outcome.stats.events as f64 / seconds / 1e6;
        eprintln!("{:?}, {seconds:.3} s, {rate:.1} M events/s with reading", outcome.stats);
    }
    Ok(())
}

fn place(stacks: &mut Resolver<'_>, site: SiteId, context: ContextId) -> String {
    let stack = stacks.stack(site, context);
    let frame = &stack[user_frame(&stack).unwrap_or(0)];
    match (&frame.function, &frame.file, frame.line) {
        (Some(function), Some(file), Some(line)) => {
            let file = file.file_name().map(|f| f.to_string_lossy()).unwrap_or_default();
            format!("{function} ({file}:{line})")
        }
        (Some(function), ..) => function.clone(),
        _ => format!("{:#x}", frame.offset),
    }
}
