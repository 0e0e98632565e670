//! Tests the collector on rings that the tests fill themselves: the order in which it passes on the records of several
//! threads.

use pmvet_events::event::FenceKind;

use super::*;

/// The threads of a target, each with its ring.
struct Script {
    shared: SharedMemory,
    rings: Vec<(usize, RingBuffer)>,
}

impl Script {
    fn new(threads: u32) -> Self {
        let shared = SharedMemory::create(&[]).unwrap();
        let rings = (1..=threads)
            .map(|thread| {
                let ring = shared.claim_ring(ThreadId(thread)).unwrap();
                shared.control(ring).ready.store(1, Ordering::Release);
                (ring, shared.ring_buffer(ring).unwrap())
            })
            .collect();
        Script { shared, rings }
    }

    fn publish(&self, thread: usize, seq: u64, what: What<'_>) {
        let (ring, buffer) = &self.rings[thread - 1];
        let mut record = Vec::new();
        let thread = ThreadId(thread as u32);
        wire::write(&Event { seq, thread, site: SiteId(0), context: ContextId(0), what }, &mut record);
        let head = &self.shared.control(*ring).head.0;
        let at = head.load(Ordering::Relaxed) as usize;
        assert!(at + record.len() < RING_BYTES);
        // SAFETY: within the buffer, behind the published head.
        unsafe { std::ptr::copy_nonoverlapping(record.as_ptr(), buffer.start().add(at), record.len()) };
        head.fetch_add(record.len() as u64, Ordering::Release);
    }

    /// A load after the event with number `seq`.
    fn load(&self, thread: usize, seq: u64) {
        self.publish(thread, seq, What::Load { addr: 0x1000, size: 8 });
    }

    /// An event that takes the next number.
    fn event(&self, thread: usize) {
        let seq = self.shared.header().next_seq.0.fetch_add(1, Ordering::AcqRel);
        self.publish(thread, seq, What::Fence { how: FenceKind::Sfence });
    }
}

/// Thread and kind of each record, in order.
#[derive(Default)]
struct Seen(String);

impl Sink for Seen {
    fn event(&mut self, event: &Event<'_>, _: &dyn Places) -> Result<(), SinkError> {
        let what = if matches!(event.what, What::Load { .. }) { "load".into() } else { event.seq.to_string() };
        self.0.push_str(&format!("{}:{what} ", event.thread.0));
        Ok(())
    }
}

fn all(script: &Script) -> String {
    let mut seen = Seen::default();
    let mut collector = Collector::new(&script.shared);
    while collector.pump(&mut seen).unwrap() > 0 {}
    seen.0
}

#[test]
fn loads_of_a_later_ring_go_before_the_event_that_came_after_them() {
    let script = Script::new(2);
    script.event(1);
    script.load(2, 1);
    script.event(1);
    script.event(1);
    assert_eq!(all(&script), "1:1 2:load 1:2 1:3 ");
}

#[test]
fn each_load_stays_between_its_two_events() {
    let script = Script::new(3);
    script.event(3);
    script.load(1, 1);
    script.load(2, 1);
    script.event(2);
    script.load(2, 2);
    script.load(1, 2);
    script.event(3);
    script.load(3, 3);
    script.event(1);
    assert_eq!(all(&script), "3:1 1:load 2:load 2:2 2:load 1:load 3:3 3:load 1:4 ");
}

#[test]
fn a_load_behind_an_event_of_its_ring_waits_for_that_event() {
    let script = Script::new(2);
    script.event(1);
    script.event(2);
    script.load(2, 2);
    script.event(1);
    assert_eq!(all(&script), "1:1 2:2 2:load 1:3 ");
}

#[test]
fn no_event_overtakes_loads_that_are_published_while_heads_are_read() {
    // As if event 2 and the load before it came after the count was read: the event's ring is read first or last, all the same.
    for (first, second) in [(1, 2), (2, 1)] {
        let script = Script::new(2);
        let mut seen = Seen::default();
        let mut collector = Collector::new(&script.shared);
        script.event(first);
        script.publish(first, 2, What::Fence { how: FenceKind::Sfence });
        collector.pump(&mut seen).unwrap();
        assert_eq!(seen.0, format!("{first}:1 "), "number 2 was not given out when the heads were read");
        script.load(second, 1);
        script.shared.header().next_seq.0.fetch_add(1, Ordering::AcqRel);
        collector.pump(&mut seen).unwrap();
        assert_eq!(seen.0, format!("{first}:1 {second}:load {first}:2 "));
    }
}

#[test]
fn lost_numbers_are_skipped_and_counted_and_loads_keep_their_place() {
    let script = Script::new(2);
    script.event(1);
    // Threads that were killed before they published theirs.
    script.shared.header().next_seq.0.fetch_add(2, Ordering::AcqRel);
    script.event(1);
    script.load(2, 3);
    let mut seen = Seen::default();
    let loss = Collector::new(&script.shared).finish(&mut seen).unwrap();
    assert_eq!(seen.0, "1:1 2:load 1:2 ");
    assert_eq!(loss.events, 2);
}
