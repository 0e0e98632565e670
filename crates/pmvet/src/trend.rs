//! Kept runs of the same command, to which the report compares a run.

use pmvet_findings::Run;
use pmvet_report::html::EarlierRun;

use crate::recovery;
use crate::retention;
use crate::run_folder::{RunFolder, RunInfo};

/// Nobody compares more rows than this, and each means reading a report.
const MAX_ROWS: usize = 20;

/// The runs before this one, oldest first: complete runs of the same engines on the same command, recovery and part of the work. Unreadable
/// runs are left out, so that an old run cannot make a report fail.
pub(crate) fn earlier_runs(folder: &RunFolder, run: &Run) -> Vec<EarlierRun> {
    let (Some(runs), Ok(this)) = (folder.path.parent(), folder.read_info()) else { return Vec::new() };
    let mut like_this: Vec<(u64, RunFolder)> = Vec::new();
    for other in retention::folders(runs).unwrap_or_default() {
        let Ok(info) = other.read_info() else { continue };
        let earlier = (info.started, &other.id) < (this.started, &folder.id);
        if earlier && info.complete && asks_the_same(&info, &this) {
            like_this.push((info.started, other));
        }
    }
    like_this.sort_by(|a, b| (b.0, &b.1.id).cmp(&(a.0, &a.1.id)));
    let reports = like_this.iter().filter_map(|(_, folder)| folder.report().ok());
    let mut earlier: Vec<EarlierRun> =
        reports.filter(|report| report.engines == run.engines).take(MAX_ROWS).map(|report| (&report).into()).collect();
    earlier.reverse();
    earlier
}

/// Whether two runs can be compared. Options that only make a run longer or shorter may differ: that is a reason to compare.
fn asks_the_same(one: &RunInfo, other: &RunInfo) -> bool {
    let part = |info: &RunInfo| info.settings.get(recovery::SHARD).cloned();
    one.command == other.command && one.setup == other.setup && one.recover == other.recover && part(one) == part(other)
}
