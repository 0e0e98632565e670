//! Inner runs that are kept among the user's runs, because their findings can be replayed there.

use std::fs;
use std::path::{Path, PathBuf};

use pmvet_findings::Finding;
use pmvet_findings::token::Token;

use crate::run_folder::RunFolder;

/// Where the user's runs are kept.
#[derive(Debug)]
pub(super) struct KeptRuns(PathBuf);

impl KeptRuns {
    /// Beside the run of a campaign.
    pub(super) fn beside(campaign: &RunFolder) -> Self {
        Self(campaign.path.parent().unwrap_or(&campaign.path).into())
    }

    pub(super) fn contains(&self, run: &str) -> bool {
        self.0.join(run).is_dir()
    }

    /// Moves a run there, if it has a folder, and points the tokens of its findings there. Returns whether it did; if not, it removes the
    /// tokens.
    pub(super) fn keep(&self, run: Option<&Path>, findings: &mut [Finding]) -> bool {
        let name = run.and_then(|run| self.claim(run));
        for finding in findings {
            let token = finding.replay.take().and_then(|token| token.parse::<Token>().ok());
            finding.replay = token.zip(name.clone()).map(|(token, run)| Token { run, ..token }.to_string());
        }
        name.is_some()
    }

    /// Moves a run to a name that is free.
    fn claim(&self, run: &Path) -> Option<String> {
        let name = run.file_name()?.to_str()?;
        (0..1000).map(|n| if n == 0 { name.to_owned() } else { format!("{name}-{n}") }).find(|name| {
            let place = self.0.join(name);
            // Creating the folder claims the name; `rename` can replace an empty folder.
            fs::create_dir(&place).is_ok() && fs::rename(run, place).is_ok()
        })
    }
}
