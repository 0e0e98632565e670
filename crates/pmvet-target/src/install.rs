//! Where the parts that run inside a target are: beside an installed pmvet, or in the build that made it.

use std::path::{Path, PathBuf};

/// The files that a target is run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Install {
    /// `libdynamorio.so`, as an absolute path.
    pub dynamorio: PathBuf,
    /// The client, a library that DynamoRIO loads into the target.
    pub client: PathBuf,
}

/// Why the files are not there.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The kernel does not say where the running pmvet is.
    #[error("cannot tell where pmvet itself is: {0}")]
    Self_(#[source] std::io::Error),
    /// One of the two was not found.
    #[error("{what} is missing; looked in {}. Build with `cargo build --release` or install with `make install`", list(.looked))]
    Missing {
        /// The name of the file.
        what: &'static str,
        /// The folders where it could be.
        looked: Vec<PathBuf>,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" and ")
}

const DYNAMORIO: &str = "libdynamorio.so";
const CLIENT: &str = "libpmvet_client.so";

impl Install {
    /// Looks where the running pmvet was installed, then where it was built.
    pub fn find() -> Result<Self, InstallError> {
        let exe = std::env::current_exe().map_err(InstallError::Self_)?;
        Self::beside(exe.parent().unwrap_or(Path::new("/")))
    }

    /// `PREFIX/bin/pmvet` goes with `PREFIX/lib/pmvet/`; `target/release/pmvet` with what cargo built.
    fn beside(bin: &Path) -> Result<Self, InstallError> {
        let installed = bin.join("../lib/pmvet");
        if installed.join(CLIENT).exists() {
            let dynamorio = installed.join(DYNAMORIO);
            return match dynamorio.exists() {
                true => Ok(Self { dynamorio: absolute(&dynamorio), client: absolute(&installed.join(CLIENT)) }),
                false => Err(InstallError::Missing { what: DYNAMORIO, looked: vec![installed] }),
            };
        }
        // A test's own executable is one folder deeper.
        let build = if bin.ends_with("deps") { bin.join("..") } else { bin.to_owned() };
        let client = build.join(CLIENT);
        if !client.exists() {
            return Err(InstallError::Missing { what: CLIENT, looked: vec![installed, build] });
        }
        let folder = build.join("dynamorio/lib64/release");
        let dynamorio = folder.join(DYNAMORIO);
        match dynamorio.exists() {
            true => Ok(Self { dynamorio: absolute(&dynamorio), client: absolute(&client) }),
            false => Err(InstallError::Missing { what: DYNAMORIO, looked: vec![installed, folder] }),
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: PathBuf) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn finds_an_installed_copy() {
        let dir = tempfile::tempdir().unwrap();
        touch(dir.path().join("lib/pmvet").join(CLIENT));
        touch(dir.path().join("lib/pmvet").join(DYNAMORIO));
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        let found = Install::beside(&dir.path().join("bin")).unwrap();
        assert_eq!(found.client, dir.path().canonicalize().unwrap().join("lib/pmvet").join(CLIENT));
    }

    #[test]
    fn finds_what_cargo_built() {
        let dir = tempfile::tempdir().unwrap();
        touch(dir.path().join(CLIENT));
        let library = dir.path().join("dynamorio/lib64/release").join(DYNAMORIO);
        touch(library.clone());
        assert_eq!(Install::beside(dir.path()).unwrap().dynamorio, library.canonicalize().unwrap());
    }

    #[test]
    fn says_what_is_missing_and_where_it_looked() {
        let dir = tempfile::tempdir().unwrap();
        let error = Install::beside(dir.path()).unwrap_err().to_string();
        assert!(error.contains(CLIENT) && error.contains("cargo build --release"), "{error}");
        touch(dir.path().join(CLIENT));
        let error = Install::beside(dir.path()).unwrap_err().to_string();
        assert!(error.starts_with(DYNAMORIO), "{error}");
    }
}
