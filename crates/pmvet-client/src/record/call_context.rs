//! Calling contexts: a shadow stack of calls, and the tree of call paths.
//!
//! Instrumented calls push a [`Frame`], returns pop one, both without touching a flag and without any check. That alone
//! would be wrong after `longjmp`, an exception or a stack switch, so every frame carries the stack pointer at its call: a
//! frame is alive only while the stack pointer is below that. An event that reads the stack drops dead frames.
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

use super::stable_ids;
use super::thread::{Thread, slot};
use crate::dynamorio::Global;
use crate::run::run;

/// The calling-context tree of this process.
pub(crate) static CALL_TREE: Global<Tree> = Global::new();

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

const STACK_FRAMES: usize = (1 << 16) / size_of::<Frame>();

#[repr(C, align(65536))]
pub(crate) struct ShadowStack([Frame; STACK_FRAMES]);

impl ShadowStack {
    pub(crate) fn new() -> Box<Self> {
        let mut stack = Box::new(Self([Frame { sp: 0, call: 0, node: 0 }; STACK_FRAMES]));
        // The bottom is alive for ever and has the root as its context.
        stack.0[0] = BOTTOM;
        stack
    }

    pub(crate) fn bottom(&self) -> *const Frame {
        &raw const self.0[0]
    }
}

/// The outermost frame of a thread.
const BOTTOM: Frame = Frame { sp: u64::MAX, call: 0, node: ROOT };

const ROOT: u32 = ROOT_CONTEXT.0;

/// The frame `distance` frames after `at`, towards the top, within the ring.
pub(crate) fn neighbour(at: *mut Frame, distance: isize) -> *mut Frame {
    let base = at as usize & !0xffff;
    (base | (at as usize).wrapping_add_signed(distance * size_of::<Frame>() as isize) & 0xffff) as *mut Frame
}

/// One step in the tree: from a node by a call to its child. The stubs look here first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct PathStep {
    pub(crate) parent: u32,
    pub(crate) call: u32,
    pub(crate) node: u32,
    unused: u32,
}

/// Steps with the same hash: a cache line of them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Bucket([PathStep; 4]);

/// A thread's cache of the tree. It grows until every step fits, since a lookup elsewhere is slow.
pub(crate) struct PathCache(Vec<Bucket>);

/// Multiplying by this spreads the numbers of nodes over the buckets.
pub(crate) const HASH_FACTOR: u32 = 0x9e37_79b1;

/// Enough for small programs: 16 KiB per thread.
const MIN_BUCKETS: usize = 1 << 8;
/// Upper bound for the cache: 2 MiB per thread.
const MAX_BUCKETS: usize = 1 << 15;

impl PathCache {
    pub(crate) fn new() -> Self {
        Self(vec![Bucket::default(); MIN_BUCKETS])
    }

    pub(crate) fn start(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// The bits of a hash that are a bucket's distance from the start, in bytes.
    pub(crate) fn mask(&self) -> u32 {
        ((self.0.len() - 1) * size_of::<Bucket>()) as u32
    }

    /// The bucket of a step. The stubs compute the same.
    fn bucket(&mut self, parent: u32, call: u32) -> &mut Bucket {
        let hash = parent.wrapping_mul(HASH_FACTOR) ^ call << size_of::<Bucket>().ilog2();
        let distance = (hash & self.mask()) as usize;
        &mut self.0[distance / size_of::<Bucket>()]
    }

    fn find(&mut self, parent: u32, call: u32) -> Option<u32> {
        let found = self.bucket(parent, call).0.iter().find(|p| p.parent == parent && p.call == call);
        found.map(|p| p.node)
    }

    fn add(&mut self, path: PathStep) {
        while self.bucket(path.parent, path.call).0[3].node != 0 && self.0.len() < MAX_BUCKETS {
            let larger = vec![Bucket::default(); self.0.len() * 2];
            let old = std::mem::replace(&mut self.0, larger);
            for path in old.iter().flat_map(|b| b.0).filter(|p| p.node != 0) {
                self.put(path);
            }
        }
        self.put(path);
    }

    /// Adds a step to its bucket. A full bucket loses its oldest.
    fn put(&mut self, path: PathStep) {
        let Bucket(paths) = self.bucket(path.parent, path.call);
        paths.rotate_right(1);
        paths[0] = path;
    }
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
            match run().shared.add_context(Context { parent: ContextId(parent), call: SiteId(call) }).0 {
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
        for _ in 0..STACK_FRAMES {
            // SAFETY: `neighbour` stays within the ring.
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
            at = neighbour(at, -1);
        }
        // Put them back without the dead ones between.
        for frame in new.iter_mut().rev() {
            node = self.child(node, frame.call);
            frame.node = node;
            at = neighbour(at, 1);
            // SAFETY: as above.
            unsafe { *at = *frame };
        }
        new.clear();
        self.new_frames = new;
        self.set_slot(slot::FRAME, at as u64);
        ContextId(node)
    }

    fn child(&mut self, parent: u32, call: u32) -> u32 {
        if run().is_coverage_run() {
            return stable_ids::context_id(parent, call);
        }
        if let Some(node) = self.path_cache.find(parent, call) {
            return node;
        }
        let node = CALL_TREE.child(parent, call);
        self.path_cache.add(PathStep { parent, call, node, unused: 0 });
        self.paths = self.path_cache.start();
        self.path_mask = self.path_cache.mask();
        node
    }

    /// A signal handler is about to run with its stack pointer at `sp`, on whatever stack. Its path starts empty.
    pub(crate) fn enter_signal(&mut self, sp: u64) {
        let top = self.frame();
        self.interrupted.push(top as u64);
        let next = neighbour(top, 1);
        // SAFETY: `neighbour` stays within the ring.
        unsafe { *next = Frame { sp: sp + 1, ..BOTTOM } };
        self.set_slot(slot::FRAME, next as u64);
    }

    pub(crate) fn leave_signal(&mut self) {
        if let Some(top) = self.interrupted.pop() {
            self.set_slot(slot::FRAME, top);
        }
    }
}
