//! Calling contexts: from the shadow stack of calls to a node in the tree of call paths.
//!
//! Each frame caches its node of the calling-context tree, so an event only looks up frames that are new since the last.

use std::collections::HashMap;
use std::sync::Mutex;

use pmvet_events::ids::{ContextId, SiteId};
use pmvet_events::places::Context;

use super::shadow_stack::{BOTTOM, PathStep, ROOT, STACK_FRAMES, ShadowFrame, neighbour};
use super::stable_ids;
use super::thread::{Thread, slot};
use crate::dynamorio::{self, Global};
use crate::run::run;

/// The calling-context tree of this process.
pub(crate) static CALL_TREE: Global<Tree> = Global::new();

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
    /// Return addresses of the current function and its callers, innermost first, as far as known.
    pub(crate) fn return_addresses(&self, count: usize) -> Vec<u64> {
        let frames = (0..count as isize).map(|depth| neighbour(self.frame(), -depth));
        // SAFETY: `neighbour` stays within the ring.
        let calls = frames.map(|frame| unsafe { (*frame).sp }).take_while(|&sp| sp != 0 && sp != BOTTOM.sp);
        calls.map_while(|sp| dynamorio::read_word(sp - size_of::<u64>() as u64)).collect()
    }

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
        self.path_cache.add(PathStep::new(parent, call, node));
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
        unsafe { *next = ShadowFrame { sp: sp + 1, ..BOTTOM } };
        self.set_slot(slot::FRAME, next as u64);
    }

    pub(crate) fn leave_signal(&mut self) {
        if let Some(top) = self.interrupted.pop() {
            self.set_slot(slot::FRAME, top);
        }
    }
}
