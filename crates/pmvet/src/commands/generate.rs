//! `pmvet generate`: manual pages and shell completions, made from the definition of the command line, for packages.

use std::io::{self, Write};
use std::path::Path;

use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::{self, Generate, GenerateWhat};
use crate::exit::{Error, Exit};
use crate::files;

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

pub(crate) fn run(arguments: &Generate) -> Result<Exit, Error> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder).map_err(|source| output("make", folder, source))?;
    match arguments.what {
        GenerateWhat::Man => manual(folder)?,
        GenerateWhat::Completions => completions(folder)?,
    }
    Ok(Exit::Ok)
}

/// One page for pmvet, and one for each command that users see.
fn manual(folder: &Path) -> Result<(), Error> {
    let mut root = cli::definition().disable_help_subcommand(true);
    root.build();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
    let mut pages: Vec<clap::Command> = commands.flat_map(with_subcommands).collect();
    pages.push(root);
    for page in pages {
        let man = Man::new(page.clone()).manual("pmvet").source(concat!("pmvet ", env!("CARGO_PKG_VERSION")));
        let mut text = Vec::new();
        let path = folder.join(man.get_filename());
        render(&man, &page, &mut text)
            .and_then(|()| files::replace(&path, |out| out.write_all(&text)))
            .map_err(|source| output("write", &path, source))?;
    }
    Ok(())
}

fn with_subcommands(command: &clap::Command) -> Vec<clap::Command> {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set()).flat_map(with_subcommands);
    std::iter::once(command.clone()).chain(below).collect()
}

/// Like [`Man::render`], but with a separate list of exit codes and a pointer to the rest of the manual.
fn render(man: &Man, page: &clap::Command, out: &mut dyn Write) -> io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if page.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    let mut rest = Roff::new();
    rest.control("SH", ["EXIT STATUS"]);
    for exit in Exit::ALL {
        rest.control("TP", []).text([bold(exit.code().to_string())]).text([roman(exit.meaning())]);
    }
    rest.control("SH", ["SEE ALSO"]);
    let (first, others) = match page.get_display_name() {
        Some("pmvet") | None => ("pmvet-vet", ", pmvet-doctor(1), pmvet-explain(1)"),
        Some(_) => ("pmvet", ""),
    };
    rest.text([bold(first), roman("(1)"), roman(others)]);
    rest.to_writer(out)
}

fn completions(folder: &Path) -> Result<(), Error> {
    for shell in SHELLS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut cli::definition(), "pmvet", &mut text);
        let path = folder.join(clap_complete::Generator::file_name(&shell, "pmvet"));
        files::replace(&path, |out| out.write_all(&text)).map_err(|source| output("write", &path, source))?;
    }
    Ok(())
}

fn output(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Output { action, what: path.display().to_string(), source }
}
