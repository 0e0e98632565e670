//! Failure points: the moments at which a crash has the most choices.
//!
//! A store adds a choice, and only an operation that makes something persistent takes choices away. So it is enough to crash before those
//! operations, if something was stored since the last one, and at the end. Whatever a crash at another moment can leave, a crash at the
//! next failure point can leave too.

use pmvet_events::event::{Event, What};
use pmvet_model::Model;

/// Finds them in the stream of events.
#[derive(Debug, Default)]
pub struct FailurePointFinder {
    /// Something was stored since the last failure point.
    changed: bool,
}

impl FailurePointFinder {
    /// Whether a crash is to be tried before this event, which `model` has not seen yet.
    pub fn is_point(&mut self, event: &Event<'_>, model: &Model) -> bool {
        let stores = matches!(event.what, What::Store { .. } | What::Rmw { stored: true, .. });
        // What a system call changes is there at once, in all states, so the states before it differ from those after
        // it.
        let by_call = matches!(
            event.what,
            What::FileWrite { .. }
                | What::FileZero { .. }
                | What::FileResize { .. }
                | What::FileRename { .. }
                | What::FileUnlink { .. }
        );
        // A system call is a failure point even if nothing was stored before.
        let is_point = by_call || self.changed && model.would_persist(event);
        if is_point {
            self.changed = false;
        }
        self.changed |= stores || by_call;
        is_point
    }

    /// Whether a crash at the end is to be tried: something was stored since the last one.
    pub fn at_end(&self) -> bool {
        self.changed
    }
}
