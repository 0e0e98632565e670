//! Durable side effects (PMRace, definition 2): what a thread made of a value that it had read too early.
//!
//! The client reports the instructions of a reader from the load on ([`What::Step`]); [`Taint`] follows the value through them. A
//! store to PM whose content or address depends on the value is a side effect, and so is output. What such stores leave in PM is
//! *inconsistent* if the value is lost.

use std::collections::HashMap;

use pmvet_events::event::{Event, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::thread_state::ThreadState;
use pmvet_events::{SiteId, ThreadId};
use pmvet_model::LineId;

use super::meetings::{Meeting, PmAccess};
use super::taint::{Effect, Registers, Taint, TracedInstruction};

/// Values to follow at a time per thread, and side effects to keep of each.
const MOST_VALUES: usize = 16;
const MOST_EFFECTS: usize = 16;
/// After this many fences since the load, a thread has done what it does with the value.
const FENCES: u32 = 2;

/// A store to PM, or output, that depends on a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideEffect {
    /// For output: the instruction, and no bytes.
    pub end: PmAccess,
    /// What is written depends on the value.
    pub content: bool,
    /// Where it is written depends on the value.
    pub address: bool,
    /// It leaves the process.
    pub output: bool,
}

/// Where a value went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// The first side effects, in the order of the run.
    pub effects: Vec<SideEffect>,
    /// A branch depended on the value: what came after it may depend on it without data flow.
    pub branched: bool,
}

/// A value that is followed.
#[derive(Debug)]
struct Value {
    site: SiteId,
    /// The number of the last event before the load, which is reported after its step.
    load: Option<u64>,
    addr: u64,
    len: u64,
    taint: Taint,
    fences: u32,
    flow: Flow,
}

/// Fed with the events of a run.
#[derive(Debug, Default)]
pub struct Flows {
    spaces: AddressSpaces,
    values: HashMap<ThreadId, Vec<Value>>,
    /// What each thread's current instruction writes, with the index of the value among those of the thread.
    writes: HashMap<ThreadId, Vec<(usize, Effect)>>,
    /// Finished flows, by thread, instruction and number of the load.
    done: HashMap<(ThreadId, SiteId, u64), Flow>,
    last_seq: u64,
}

impl Flows {
    /// Takes the next event. Values are followed only in runs that report instructions.
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        match event.what {
            What::Step { addr, len, state } => {
                if let Some(state) = ThreadState::from_bytes(state) {
                    self.step(event, addr, len, &state);
                }
            }
            What::Load { .. } => {
                self.loaded(event);
                return;
            }
            What::Store { addr, value, .. } => self.stored(event, addr, value.len() as u64),
            What::Rmw { addr, new, stored, .. } => {
                self.loaded(event);
                if stored {
                    self.stored(event, addr, new.len() as u64);
                }
            }
            What::Fence { .. } => self.fenced(event.thread),
            _ => {}
        }
        self.last_seq = event.seq;
    }

    /// Tells each meeting where its value went, if it was followed.
    pub fn attach(mut self, meetings: &mut [Meeting]) {
        for (thread, values) in std::mem::take(&mut self.values) {
            values.into_iter().for_each(|value| self.end(thread, value));
        }
        for meeting in meetings.iter_mut().filter(|meeting| meeting.read) {
            let load = meeting.load;
            meeting.flow = self.done.get(&(load.thread, load.site, load.seq)).cloned();
        }
    }

    fn end(&mut self, thread: ThreadId, value: Value) {
        if let Some(load) = value.load {
            // Loads of a loop may have the same number.
            let known = self.done.entry((thread, value.site, load)).or_default();
            value.flow.effects.into_iter().for_each(|effect| known.note(effect));
            known.branched |= value.flow.branched;
        }
    }

    fn step(&mut self, event: &Event<'_>, addr: u64, len: u64, state: &ThreadState) {
        let registers = Registers { general: state.general, fs: state.fs };
        let step = TracedInstruction { pc: state.pc, code: &state.code, registers: &registers };
        let Event { thread, site, context, .. } = *event;
        let mut ended = None;
        let values = self.values.entry(thread).or_default();
        let first = match len {
            0 => 0,
            // If its thread was already followed, this instruction was reported before.
            _ => {
                let mut taint = Taint::default();
                taint.source(addr, len);
                // A thread that waits for a value loads it over and over, and acts on the last load.
                if values.len() == MOST_VALUES {
                    ended = Some(values.remove(0));
                    let writes = self.writes.entry(thread).or_default();
                    writes.retain_mut(|(i, _)| i.checked_sub(1).map(|earlier| *i = earlier).is_some());
                }
                values.push(Value { site, load: None, addr, len, taint, fences: 0, flow: Flow::default() });
                values.len() - 1
            }
        };
        let writes = self.writes.entry(thread).or_default();
        if len == 0 {
            writes.clear();
        }
        for (i, value) in values.iter_mut().enumerate().skip(first) {
            for effect in value.taint.step(&step) {
                if !effect.output {
                    writes.push((i, effect));
                    continue;
                }
                let line = LineId::containing(pmvet_events::FileId(0), 0);
                let end = PmAccess { thread, site, context, seq: event.seq, line, offset: 0, len: 0 };
                value.flow.note(SideEffect { end, content: effect.content, address: effect.address, output: true });
            }
            value.flow.branched |= value.taint.branched();
        }
        if let Some(value) = ended {
            self.end(thread, value);
        }
    }

    fn loaded(&mut self, event: &Event<'_>) {
        let values = self.values.get_mut(&event.thread).into_iter().flatten();
        for value in values.filter(|value| value.load.is_none() && value.site == event.site) {
            value.load = Some(self.last_seq);
        }
    }

    /// Whether what a thread stores depends on a value that it has read.
    fn stored(&mut self, event: &Event<'_>, addr: u64, len: u64) {
        let Some(values) = self.values.get_mut(&event.thread) else { return };
        for (i, effect) in self.writes.get(&event.thread).into_iter().flatten() {
            let Some(value) = values.get_mut(*i) else { continue };
            let writes = effect.addr < addr + len && addr < effect.addr + effect.len;
            // A store that overwrites the value is no side effect of it.
            let over = value.addr < addr + len && addr < value.addr + value.len;
            if !writes || over {
                continue;
            }
            self.spaces.locate(event.thread, addr, len, |part| {
                let Event { seq, thread, site, context, .. } = *event;
                let line = LineId::containing(part.file, part.offset);
                let end = PmAccess { thread, site, context, seq, line, offset: part.offset, len: part.len as u64 };
                value.flow.note(SideEffect { end, content: effect.content, address: effect.address, output: false });
            });
        }
    }

    fn fenced(&mut self, thread: ThreadId) {
        let Some(values) = self.values.get_mut(&thread) else { return };
        values.iter_mut().for_each(|value| value.fences += 1);
        let (over, left): (Vec<_>, Vec<_>) =
            std::mem::take(values).into_iter().partition(|value| value.fences > FENCES);
        *values = left;
        self.writes.remove(&thread);
        over.into_iter().for_each(|value| self.end(thread, value));
    }
}

impl Flow {
    fn note(&mut self, effect: SideEffect) {
        if self.effects.len() < MOST_EFFECTS {
            self.effects.push(effect);
        }
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::{FenceKind, StoreKind};
    use pmvet_events::thread_state::CODE;
    use pmvet_events::{ContextId, FileId};

    use super::*;

    const READER: ThreadId = ThreadId(2);
    /// In PM, which is mapped at 0x1000: what was read too early, and other bytes.
    const VALUE: u64 = 0x1100;
    const OTHER: u64 = 0x1200;
    const LOAD: SiteId = SiteId(7);

    /// A reader with 4 KiB of PM.
    struct FlowScript {
        flows: Flows,
        seq: u64,
    }

    impl FlowScript {
        fn new() -> Self {
            let mut play = Self { flows: Flows::default(), seq: 0 };
            play.event(SiteId(0), What::ThreadStart { process: 1, os_thread: 2 });
            play.event(SiteId(0), What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0, writable: true });
            play
        }

        fn event(&mut self, site: SiteId, what: What<'_>) {
            self.seq += u64::from(what.is_numbered());
            self.flows.event(&Event { seq: self.seq, thread: READER, site, context: ContextId(0), what });
        }

        /// `rdi` is the address of the value, `rsi` that of other bytes, and `rbp` that of volatile memory.
        fn step(&mut self, site: SiteId, code: &[u8], source: (u64, u64)) {
            let mut state = ThreadState { general: [0; 16], fs: 0, pc: 0x400000, code: [0x90; CODE] };
            (state.general[7], state.general[6], state.general[5]) = (VALUE, OTHER, 0x9000);
            state.code[..code.len()].copy_from_slice(code);
            self.event(site, What::Step { addr: source.0, len: source.1, state: &state.to_bytes() });
        }

        /// `mov rax, [rdi]`
        fn load(&mut self) -> u64 {
            self.step(LOAD, &[0x48, 0x8b, 0x07], (VALUE, 8));
            let seq = self.seq;
            self.event(LOAD, What::Load { addr: VALUE, size: 8 });
            seq
        }

        fn store(&mut self, site: u32, code: &[u8], addr: u64) {
            self.step(SiteId(site), code, (0, 0));
            self.event(SiteId(site), What::Store { addr, value: &[1; 8], how: StoreKind::Regular });
        }

        /// What a meeting at the load is told.
        fn end(self, seq: u64) -> Option<Flow> {
            let line = LineId::containing(FileId(1), 0x100);
            let load = PmAccess { thread: READER, site: LOAD, context: ContextId(0), seq, line, offset: 0x100, len: 8 };
            let mut meeting = Meeting {
                store: load,
                load,
                read: true,
                acts: 0,
                acted_before: false,
                sees_change: false,
                nth: None,
                crashes: Vec::new(),
                flow: None,
            };
            self.flows.attach(std::slice::from_mut(&mut meeting));
            meeting.flow
        }
    }

    #[test]
    fn stores_whose_content_or_address_depends_on_the_value_are_side_effects() {
        let mut play = FlowScript::new();
        let seq = play.load();
        play.store(8, &[0x48, 0x89, 0x06], OTHER); // mov [rsi], rax
        play.store(9, &[0x48, 0x89, 0x0e], OTHER + 8); // mov [rsi], rcx
        play.store(10, &[0x48, 0x89, 0x08], 0); // mov [rax], rcx: rax is 0 here, which is no PM
        let flow = play.end(seq).expect("followed");
        let seen: Vec<_> = flow.effects.iter().map(|e| (e.end.site.0, e.end.offset, e.content, e.address)).collect();
        assert_eq!(seen, [(8, OTHER - 0x1000, true, false)]);
        assert!(!flow.branched);
    }

    #[test]
    fn a_value_is_followed_through_memory_and_not_beyond_two_fences() {
        let mut play = FlowScript::new();
        let seq = play.load();
        play.step(SiteId(8), &[0x48, 0x89, 0x45, 0x00], (0, 0)); // mov [rbp], rax
        play.step(SiteId(9), &[0x48, 0x31, 0xc0], (0, 0)); // xor rax, rax
        play.store(10, &[0x48, 0x89, 0x06], OTHER); // mov [rsi], rax
        play.step(SiteId(11), &[0x48, 0x8b, 0x45, 0x00], (0, 0)); // mov rax, [rbp]
        play.store(12, &[0x48, 0x89, 0x06], OTHER);
        (0..=FENCES).for_each(|_| play.event(SiteId(13), What::Fence { how: FenceKind::Sfence }));
        play.store(14, &[0x48, 0x89, 0x06], OTHER);
        let flow = play.end(seq).expect("followed");
        assert_eq!(flow.effects.iter().map(|effect| effect.end.site.0).collect::<Vec<_>>(), [12]);
    }

    #[test]
    fn a_store_over_the_value_is_no_act_on_it_and_a_branch_is_noted() {
        let mut play = FlowScript::new();
        let seq = play.load();
        play.step(SiteId(8), &[0x48, 0x85, 0xc0], (0, 0)); // test rax, rax
        play.step(SiteId(9), &[0x74, 0x00], (0, 0)); // je
        play.store(10, &[0x48, 0x89, 0x07], VALUE); // mov [rdi], rax
        assert_eq!(play.end(seq), Some(Flow { effects: Vec::new(), branched: true }));
    }

    #[test]
    fn a_thread_that_waits_for_a_value_acts_on_the_last_that_it_loads() {
        let mut play = FlowScript::new();
        for _ in 0..2 * MOST_VALUES {
            play.load();
        }
        // Not followed, as what it loads is not at risk.
        play.event(LOAD, What::Load { addr: VALUE, size: 8 });
        let seq = play.load();
        play.store(8, &[0x48, 0x89, 0x06], OTHER); // mov [rsi], rax
        let flow = play.end(seq).expect("followed");
        assert_eq!(flow.effects.iter().map(|effect| effect.end.site.0).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn a_load_that_was_not_followed_has_no_flow() {
        let mut play = FlowScript::new();
        let seq = play.load();
        assert_eq!(play.end(seq + 1), None);
    }

    #[test]
    fn damaged_states_are_passed_over() {
        let mut play = FlowScript::new();
        play.event(LOAD, What::Step { addr: VALUE, len: 8, state: &[1, 2, 3] });
        play.event(LOAD, What::Load { addr: VALUE, size: 8 });
        assert_eq!(play.end(3), None);
    }
}
