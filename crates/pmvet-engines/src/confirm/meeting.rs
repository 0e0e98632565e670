//! What is known of a race that happened, and of the crashes that would show whether it does harm.

use std::collections::HashMap;

use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_model::LineId;
use pmvet_target::crash::{Patch, VersionId, Versions};

use super::flow::Flow;
use super::shared::Nth;

/// One side of a meeting, or an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PmAccess {
    /// Who did it.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// For a load, the number of the last event before it.
    pub seq: u64,
    /// The cache line; of an access to several, the first.
    pub line: LineId,
    /// In the file.
    pub offset: u64,
    /// Bytes that count, from `offset` on; 0 for fences and answers.
    pub len: u64,
}

/// A crash image: the content of PM before the event `seq`, with some bytes as they were before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeetingCrash {
    /// The crash comes before the event with this number.
    pub seq: u64,
    /// The content of PM then, all stores included.
    pub version: VersionId,
    /// What to write over it to lose the stores in `lost`.
    pub patches: Vec<Patch>,
    /// What to write instead to lose only what other threads have stored into the same lines later. Empty: nobody has.
    pub others: Vec<Patch>,
    /// What to write instead to lose only what the same thread has stored into the line later, from each of those stores on: it may be the
    /// one to blame.
    pub later: Vec<LaterLoss>,
    /// What to write instead to lose all that is lost but the store that was read. Empty: nothing else is lost, or nobody has read it.
    pub beside: Vec<Patch>,
    /// The same loss when nobody has acted on it yet: before the event `control_at`.
    pub control: Vec<Patch>,
    /// The moment of that loss: right after the load, or after the writer's last store if nobody has read it.
    pub control_at: u64,
    /// The stores that are lost: the one that was read, or all that its thread had not persisted by then.
    pub lost: Vec<PmAccess>,
    /// What the reader has just done.
    pub act: PmAccess,
    /// The act is a fence: what came before it is persistent.
    pub fenced: bool,
    /// The act is an answer: what the reader did is acknowledged.
    pub answered: bool,
    /// What to write over the content, without the patches, to undo all that the reader has stored since the load, if that is known.
    pub unacted: Option<Vec<Patch>>,
}

/// The loss of a line from a store on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterLoss {
    /// The store's instruction.
    pub site: SiteId,
    /// What to write over the image.
    pub patches: Vec<Patch>,
}

impl MeetingCrash {
    /// Writes something over all images of the crash.
    pub(super) fn add_to_all(&mut self, patches: &[Patch]) {
        let optional = [&mut self.others, &mut self.beside].into_iter().filter(|images| !images.is_empty());
        let later = self.later.iter_mut().map(|later| &mut later.patches);
        let images = optional.chain([&mut self.patches, &mut self.control]).chain(&mut self.unacted).chain(later);
        images.for_each(|image| image.extend_from_slice(patches));
    }
}

/// A thread read what another, or itself, had stored, before it was persistent; or went on meanwhile without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// The store that was not persistent.
    pub store: PmAccess,
    /// The load; or what another thread did last before the store became persistent.
    pub load: PmAccess,
    /// The store was read. If it was not, what others know of it they know from ordinary memory.
    pub read: bool,
    /// How many acts of others there are between the store and its persist, as far as that was counted.
    pub acts: u64,
    /// Somebody had read what may be lost, and acted on that, before this load; or, if nobody has read it, before the writer was done.
    pub acted_before: bool,
    /// The reader had read the value that the store has replaced: it can tell that this has changed.
    pub sees_change: bool,
    /// How often the writer had run the store's instruction before, if that is known.
    pub nth: Option<u32>,
    /// The store is lost: after each act of the reader, and just before the store becomes persistent.
    pub crashes: Vec<MeetingCrash>,
    /// Where the value went, if the reader was followed.
    pub flow: Option<Flow>,
}

impl Meeting {
    /// A thread met itself.
    pub fn is_intra(&self) -> bool {
        self.store.thread == self.load.thread
    }
}

/// All meetings of a run.
#[derive(Debug)]
pub struct Meetings {
    /// The contents that crashes refer to.
    pub versions: Versions,
    /// Those with a crash to try.
    pub meetings: Vec<Meeting>,
    /// The fences that made stores persistent which were met, by the number of the store: the writer's own, or the next one that it
    /// makes after somebody else's.
    pub fences: HashMap<u64, Nth>,
    /// The content at the end.
    pub last: VersionId,
    /// Meetings left out because there were too many at a time.
    pub left_out: u64,
}
