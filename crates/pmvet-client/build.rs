//! Builds the one library of DynamoRIO that the client needs, and tells cargo where it is.
//!
//! The source comes with the crate `dynamorio-sys`, which would build all of DynamoRIO and needs libclang for its bindings. It is a dependency
//! for `SOURCE_PLATFORM` alone, which pmvet is never built for: cargo downloads and checks it, and builds nothing of it (decision 49).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::{env, fs};

const CRATE: &str = "dynamorio-sys";
const SOURCE_PLATFORM: &str = "x86_64-unknown-none";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    // Cargo shows what the commands have printed if this fails, and only then.
    if let Err(problem) = build() {
        eprintln!("{problem}");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    let source = source()?;
    // Beside what is built, where pmvet looks for it. In `OUT_DIR` clippy would have its own and build it once more.
    let out = PathBuf::from(variable("OUT_DIR")?);
    let folder = out.ancestors().nth(3).ok_or("OUT_DIR is not where cargo puts it")?.join("dynamorio");
    // Says what it was configured for, and is written only then.
    let configured = folder.join("configured-for");
    if fs::read(&configured).ok().as_deref() != Some(source.as_os_str().as_encoded_bytes()) {
        // CMake refuses a folder of another version.
        let _ = fs::remove_dir_all(&folder);
        let mut cmake = Command::new("cmake");
        cmake.arg("-S").arg(&source).arg("-B").arg(&folder).arg("-DCMAKE_BUILD_TYPE=RelWithDebInfo");
        cmake.args(["-DCMAKE_ASM_COMPILER=/usr/bin/as", "-DCMAKE_ASM_FLAGS="]);
        cmake.args(["CLIENTS", "DOCS", "EXT", "SAMPLES", "TESTS", "TOOLS"].map(|part| format!("-DBUILD_{part}=NO")));
        succeed(&mut cmake)?;
        let note = fs::write(&configured, source.as_os_str().as_encoded_bytes());
        note.map_err(|e| format!("cannot write {}: {e}", configured.display()))?;
    }
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&folder).args(["--target", "dynamorio"]);
    // As many jobs as cargo has to spare.
    make.env("MAKEFLAGS", env::var_os("CARGO_MAKEFLAGS").unwrap_or_default());
    succeed(&mut make)?;

    println!("cargo::rustc-link-search=native={}", folder.join("lib64/release").display());
    println!("cargo::rustc-link-lib=dylib=dynamorio");
    Ok(())
}

/// Where cargo has put DynamoRIO's source.
fn source() -> Result<PathBuf, String> {
    let mut metadata = Command::new(variable("CARGO")?);
    metadata.args(["metadata", "--locked", "--format-version=1", "--filter-platform", SOURCE_PLATFORM]);
    metadata.stderr(Stdio::inherit());
    let output = metadata.output().map_err(|e| format!("cannot run {metadata:?}: {e}"))?;
    let known = String::from_utf8_lossy(&output.stdout);
    let paths = known.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let crates = paths.filter_map(|path| Path::new(path).parent());
    let found = crates.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(CRATE)));
    let source = found.map(|path| path.join("dynamorio")).find(|path| path.join("CMakeLists.txt").exists());
    source.ok_or_else(|| format!("{metadata:?} names no {CRATE} with the source of DynamoRIO"))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set; cargo sets it"))
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
