//! The shadow stack of calls, and a thread's cache of call paths.
//!
//! Instrumented calls push a [`ShadowFrame`], returns pop one, both without touching a flag and without any check. That alone
//! would be wrong after `longjmp`, an exception or a stack switch, so every frame carries the stack pointer at its call: a
//! frame is alive only while the stack pointer is below that. An event that reads the stack drops dead frames.
//!
//! The stack is a ring of 64 KiB at an address of the same alignment: instrumented code moves only the low 16 bits of
//! the position, so it can neither overflow nor underflow. Recursion deeper than the ring loses its outermost
//! frames.

use pmvet_events::shm::ROOT_CONTEXT;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ShadowFrame {
    /// The stack pointer at the call, before the return address was pushed.
    pub(crate) sp: u64,
    /// The call instruction. Pushing writes it together with `node` = 0, in one store.
    pub(crate) call: u32,
    /// The call path up to and including this frame, once looked up.
    pub(crate) node: u32,
}

pub(super) const STACK_FRAMES: usize = (1 << 16) / size_of::<ShadowFrame>();

#[repr(C, align(65536))]
pub(crate) struct ShadowStack([ShadowFrame; STACK_FRAMES]);

impl ShadowStack {
    pub(crate) fn new() -> Box<Self> {
        let mut stack = Box::new(Self([ShadowFrame { sp: 0, call: 0, node: 0 }; STACK_FRAMES]));
        // The bottom is always alive and has the root as its context.
        stack.0[0] = BOTTOM;
        stack
    }

    pub(crate) fn bottom(&self) -> *const ShadowFrame {
        &raw const self.0[0]
    }
}

/// The outermost frame of a thread.
pub(super) const BOTTOM: ShadowFrame = ShadowFrame { sp: u64::MAX, call: 0, node: ROOT };

pub(super) const ROOT: u32 = ROOT_CONTEXT.0;

/// The frame `distance` frames after `at`, towards the top, within the ring.
pub(super) fn neighbour(at: *mut ShadowFrame, distance: isize) -> *mut ShadowFrame {
    let base = at as usize & !0xffff;
    (base | (at as usize).wrapping_add_signed(distance * size_of::<ShadowFrame>() as isize) & 0xffff)
        as *mut ShadowFrame
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

impl PathStep {
    pub(super) fn new(parent: u32, call: u32, node: u32) -> Self {
        Self { parent, call, node, unused: 0 }
    }
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

    pub(super) fn find(&mut self, parent: u32, call: u32) -> Option<u32> {
        let found = self.bucket(parent, call).0.iter().find(|p| p.parent == parent && p.call == call);
        found.map(|p| p.node)
    }

    pub(super) fn add(&mut self, path: PathStep) {
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
