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
    /// The thread that did it.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// For a load, the number of the last event before it.
    pub seq: u64,
    /// The cache line; of an access to several, the first.
    pub line: LineId,
    /// Offset in the file.
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
    /// What to write instead to lose only later stores of other threads to the same lines. Empty: there are none.
    pub others: Vec<Patch>,
    /// What to write instead to lose only another store of the same thread: each that came later to the line, and each of those before that
    /// are lost with it. One of them may be to blame.
    pub suspects: Vec<SuspectLoss>,
    /// What to write instead to lose everything in `lost` but the store that was read. Empty: nothing else is lost, or no thread read
    /// it.
    pub beside: Vec<Patch>,
    /// What to write for the same loss at `control_at`, before any thread has acted on it.
    pub control: Vec<Patch>,
    /// The moment of that loss: right after the load, or after the writer's last store if no thread read it.
    pub control_at: u64,
    /// The stores that are lost: the one that was read, or all that its thread had not persisted by then.
    pub lost: Vec<PmAccess>,
    /// What the reader has just done.
    pub act: PmAccess,
    /// The act is a fence: what came before it is persistent.
    pub fenced: bool,
    /// The act is an answer: what the reader did is acknowledged.
    pub answered: bool,
    /// The writer has done nothing since the store: no store, no fence, no answer.
    pub writer_idle: bool,
    /// What to write over the content, without the patches, to undo all that the reader has stored since the load, if that is known.
    pub unacted: Option<Vec<Patch>>,
}

/// The loss of a line from a store on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectLoss {
    /// The store's instruction.
    pub site: SiteId,
    /// What to write over the image.
    pub patches: Vec<Patch>,
}

impl MeetingCrash {
    /// Writes something over all images of the crash.
    pub(super) fn add_to_all(&mut self, patches: &[Patch]) {
        let optional = [&mut self.others, &mut self.beside].into_iter().filter(|images| !images.is_empty());
        let suspects = self.suspects.iter_mut().map(|suspect| &mut suspect.patches);
        let images = optional.chain([&mut self.patches, &mut self.control]).chain(&mut self.unacted).chain(suspects);
        images.for_each(|image| image.extend_from_slice(patches));
    }
}

/// A thread read what another thread, or itself, had stored before that was persistent; or acted meanwhile without
/// reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// The store that was not persistent.
    pub store: PmAccess,
    /// The load; or what another thread did last before the store became persistent.
    pub load: PmAccess,
    /// The store was read. If not, other threads can know of it only through ordinary memory.
    pub read: bool,
    /// How many acts of other threads lie between the store and its persist, as far as they were counted.
    pub acts: u64,
    /// A thread had read what may be lost, and acted on it, before this load; or, if none has read it, before the writer was done.
    pub acted_before: bool,
    /// The reader had read the value that the store replaced, so it can see the change.
    pub sees_change: bool,
    /// How often the writer had run the store's instruction before, if that is known.
    pub nth: Option<u32>,
    /// Crashes that lose the store: after each act of the reader, and just before the store becomes persistent.
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
    /// The fences that made stores of meetings persistent, by the number of the store: the writer's own, or its next one if another
    /// thread's fence did.
    pub fences: HashMap<u64, Nth>,
    /// The content at the end.
    pub last: VersionId,
    /// Meetings ignored because there were too many at a time.
    pub left_out: u64,
}
