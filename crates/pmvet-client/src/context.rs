//! Calling contexts: a shadow stack of calls, and the tree of call paths.
//!
//! Instrumented calls push a [`Frame`], returns pop one, both without touching a flag and without any check. That alone
//! would be wrong after `longjmp`, an exception or a stack switch, so every frame carries the stack pointer at its call: a
//! frame is alive only while the stack pointer is below that. Dead frames are dropped when an event looks at the stack.
//!
//! The stack is a ring of 64 KiB at an address of the same alignment: instrumented code moves only the low 16 bits of
//! the position, so it can neither overflow nor underflow. Recursion deeper than the ring loses its outermost
//! frames.
//!
//! Each frame caches its node of the calling-context tree, so an event only looks up frames that are new since the last.

use std::collections::HashMap;
use std::sync::Mutex;

use pmvet_events::ids::{ContextId, SiteId};
use pmvet_events::places::Context;
use pmvet_events::shm::ROOT_CONTEXT;

use crate::client;
use crate::thread::{Thread, slot};

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Frame {
    /// The stack pointer at the call, before the return address was pushed.
    pub(crate) sp: u64,
    /// The call instruction. Pushing writes it together with `node` = 0, in one store.
    pub(crate) call: u32,
    /// The call path up to and including this frame, once looked up.
    pub(crate) node: u32,
}

const FRAMES: usize = (1 << 16) / size_of::<Frame>();

#[repr(C, align(65536))]
pub(crate) struct ShadowStack([Frame; FRAMES]);

impl ShadowStack {
    pub(crate) fn new() -> Box<Self> {
        let mut stack = Box::new(Self([Frame { sp: 0, call: 0, node: 0 }; FRAMES]));
        // The bottom is alive for ever and has the root as its context.
        stack.0[0] = BOTTOM;
        stack
    }

    pub(crate) fn bottom(&self) -> *const Frame {
        &raw const self.0[0]
    }
}

/// A frame below which there is nothing: a thread's outermost function.
const BOTTOM: Frame = Frame { sp: u64::MAX, call: 0, node: ROOT };

const ROOT: u32 = ROOT_CONTEXT.0;

/// The frame `distance` further from the top than `at`, within the ring.
pub(crate) fn step(at: *mut Frame, distance: isize) -> *mut Frame {
    let base = at as usize & !0xffff;
    (base | (at as usize).wrapping_add_signed(distance * size_of::<Frame>() as isize) & 0xffff) as *mut Frame
}

/// How many steps of the tree a thread remembers.
pub(crate) const PATHS: usize = 1 << 12;

/// One step of the tree that a thread took: from a node by a call to a node. The stubs look here first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Path {
    parent: u32,
    call: u32,
    node: u32,
    unused: u32,
}

/// What a thread remembers: pairs of neighbours, so aligned that the stubs find one from the other by a bit.
#[repr(C, align(32))]
pub(crate) struct Paths([Path; PATHS]);

impl Paths {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self([Path::default(); PATHS]))
    }
}

/// Where a step is remembered, unless its neighbour has it; the stubs compute the same.
fn path_index(parent: u32, call: u32) -> usize {
    let mixed = parent.wrapping_mul(0x9e37_79b1).wrapping_add(call).wrapping_mul(0x85eb_ca6b);
    (mixed >> (32 - PATHS.ilog2())) as usize
}

/// The tree of call paths of this process. Nodes are numbered over the whole run.
#[derive(Default)]
pub(crate) struct Tree {
    children: Mutex<HashMap<(u32, u32), u32>>,
}

impl Tree {
    fn child(&self, parent: u32, call: u32) -> u32 {
        let mut children = self.children.lock().unwrap_or_else(|e| e.into_inner());
        *children.entry((parent, call)).or_insert_with(|| {
            match client().shared.add_context(Context { parent: ContextId(parent), call: SiteId(call) }).0 {
                // The table is full.
                0 => ROOT,
                id => id,
            }
        })
    }
}

impl Thread {
    /// The call path to the function that runs now, with the target's stack pointer at `sp`.
    pub(crate) fn context(&mut self, sp: u64) -> ContextId {
        let top = self.frame();
        // Collect the live frames that have no node yet, from the top down.
        let mut new = std::mem::take(&mut self.new_frames);
        let mut at = top;
        let mut below = sp;
        let mut node = ROOT;
        for _ in 0..FRAMES {
            // SAFETY: `step` stays within the ring.
            let frame = unsafe { *at };
            if frame.sp == 0 {
                break;
            }
            if frame.sp > below {
                if frame.node != 0 {
                    node = frame.node;
                    break;
                }
                new.push(frame);
                below = frame.sp;
            }
            at = step(at, -1);
        }
        // Put them back without the dead ones between.
        for frame in new.iter_mut().rev() {
            node = self.child(node, frame.call);
            frame.node = node;
            at = step(at, 1);
            // SAFETY: as above.
            unsafe { *at = *frame };
        }
        new.clear();
        self.new_frames = new;
        self.set_slot(slot::FRAME, at as u64);
        ContextId(node)
    }

    fn child(&mut self, parent: u32, call: u32) -> u32 {
        let index = path_index(parent, call);
        for path in [self.remembered.0[index], self.remembered.0[index ^ 1]] {
            if path.parent == parent && path.call == call {
                return path.node;
            }
        }
        let node = client().tree.child(parent, call);
        self.remembered.0[index ^ 1] = self.remembered.0[index];
        self.remembered.0[index] = Path { parent, call, node, unused: 0 };
        node
    }

    /// A signal handler is about to run with its stack pointer at `sp`, on whatever stack. Its path starts empty.
    pub(crate) fn enter_signal(&mut self, sp: u64) {
        let top = self.frame();
        self.interrupted.push(top as u64);
        let next = step(top, 1);
        // SAFETY: `step` stays within the ring.
        unsafe { *next = Frame { sp: sp + 1, ..BOTTOM } };
        self.set_slot(slot::FRAME, next as u64);
    }

    pub(crate) fn leave_signal(&mut self) {
        if let Some(top) = self.interrupted.pop() {
            self.set_slot(slot::FRAME, top);
        }
    }
}
