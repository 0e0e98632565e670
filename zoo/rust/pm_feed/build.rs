//! Rebuilds when another bug is asked for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=ZOO_BUG");
}
