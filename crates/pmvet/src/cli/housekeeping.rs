//! What is typed to commands that run no program: pages and completions for packages.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// What to write: pages of the manual, or completions for bash, zsh and fish
    #[arg(value_enum)]
    pub(crate) what: GenerateWhat,

    /// Where to; made if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GenerateWhat {
    Man,
    Completions,
}
