//! The corpus: one file a construct, each with one entry point.

#![allow(dead_code, unreachable_pub)]

use std::{env, fs, path::Path};

use onebuf_wgsl::{Module, Specialized};

/// Whether `ONEBUF_REQUIRE` names `what`.
pub fn required(what: &str) -> bool {
    env::var("ONEBUF_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name.trim() == what))
}

/// Every kernel of the corpus, by the name of its file.
pub fn corpus() -> Vec<(String, Specialized)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &Path| {
        let source = fs::read_to_string(path).unwrap();
        Module::parse(&source).and_then(|module| module.specialize(None, &[]))
    };
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let kernels: Vec<_> = paths.iter().map(|path| (name(path), read(path))).collect();
    let refused: Vec<_> = kernels
        .iter()
        .filter_map(|(name, kernel)| Some(format!("{name}: {}", kernel.as_ref().err()?)))
        .collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    kernels.into_iter().filter_map(|(name, kernel)| Some((name, kernel.ok()?))).collect()
}
