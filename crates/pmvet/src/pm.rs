//! What counts as PM: globs of paths.

use std::ffi::OsStr;
use std::path::Path;

use glob::Pattern;
use pmvet_events::paths;

/// Globs that are PM by default.
pub(crate) const DEFAULT: [&str; 3] = ["/mnt/pmem*/**", "/dev/shm/**", "/dev/dax*"];

/// Turns a glob from the user into an absolute one; relative globs are relative to `base`. Globs match the [`text`](paths::text) of a path.
pub(crate) fn glob<T: AsRef<OsStr> + ?Sized>(written: &T, base: &Path) -> Result<String, String> {
    let path = Path::new(written);
    if path.as_os_str().is_empty() {
        return Err("an empty glob matches nothing".into());
    }
    let escaped = |path: &Path| Pattern::escape(paths::text(path).trim_end_matches('/'));
    let absolute = match path.strip_prefix(".").unwrap_or(path) {
        rest if path.is_absolute() => paths::text(rest).into_owned(),
        rest => format!("{}/{}", escaped(base), paths::text(rest)),
    };
    // A folder stands for everything in it, even if its name looks like a glob.
    let there = base.join(path);
    // The target's mappings are known by their real paths.
    let real = || there.canonicalize().unwrap_or(there.clone());
    if there.is_dir() {
        return Ok(format!("{}/**", escaped(&real())));
    }
    if there.is_file() {
        return Ok(escaped(&real()));
    }
    match Pattern::new(&absolute) {
        Ok(_) => Ok(absolute),
        Err(e) => {
            let text = paths::text(path);
            let before = absolute.chars().count().saturating_sub(text.chars().count());
            let at = e.pos.saturating_sub(before);
            Err(format!("bad glob `{}`: {} at character {at}", paths::shown(path), e.msg))
        }
    }
}

/// Globs in readable form.
pub(crate) fn shown(globs: &[String]) -> String {
    let shown = |glob: &String| paths::shown(&paths::of_text(glob)).to_string();
    globs.iter().map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn relative_globs_become_absolute() {
        let base = Path::new("/no/such [folder]");
        assert_eq!(glob("*.pool", base).unwrap(), "/no/such [[]folder[]]/*.pool");
        assert_eq!(glob("./a/*", base).unwrap(), "/no/such [[]folder[]]/a/*");
        assert_eq!(glob("/x/**", base).unwrap(), "/x/**");
    }

    #[test]
    fn folders_and_files_stand_for_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("a[b]")).unwrap();
        std::fs::write(real.join("p*"), "").unwrap();
        let folder = Pattern::new(&glob("a[b]", &real).unwrap()).unwrap();
        assert!(folder.matches(real.join("a[b]/x/y").to_str().unwrap()));
        assert!(!folder.matches(real.join("ab/x").to_str().unwrap()));
        let file = Pattern::new(&glob("p*", &real).unwrap()).unwrap();
        assert!(file.matches(real.join("p*").to_str().unwrap()) && !file.matches(real.join("pool").to_str().unwrap()));
    }

    #[test]
    fn names_need_not_be_utf_8() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let name = OsStr::from_bytes(b"\xff\xfe");
        std::fs::write(real.join(name), "").unwrap();
        let matches = |written: &OsStr, name: &[u8]| {
            let pattern = Pattern::new(&glob(written, &real).unwrap()).unwrap();
            pattern.matches(&paths::text(&real.join(OsStr::from_bytes(name))))
        };
        assert!(matches(name, b"\xff\xfe") && !matches(name, b"\xff\xfd"), "a file");
        assert!(matches(OsStr::from_bytes(b"\xff*"), b"\xff\xfe") && !matches(OsStr::from_bytes(b"\xff*"), b"\xfe"));
        assert!(matches(OsStr::new("??"), b"\xff\xfe") && !matches(OsStr::new("?"), b"\xff\xfe"));
        assert!(matches(OsStr::new("."), b"\xff\xfe"), "its folder");
        assert_eq!(shown(&[glob(name, Path::new("/no/such")).unwrap()]), r"/no/such/\xff\xfe");
    }

    #[test]
    fn bad_globs_say_where() {
        let error = glob("/a/[b", Path::new("/")).unwrap_err();
        assert!(error.contains("/a/[b") && error.contains("character 3"), "{error}");
        assert!(glob("a***", Path::new("/")).is_err());
        assert!(glob("", Path::new("/")).is_err());
    }

    #[test]
    fn the_default_is_valid() {
        for text in DEFAULT {
            assert!(glob(text, Path::new("/")).is_ok());
        }
    }
}
