//! Where the Vulkan loader looks for manifests, as its documentation has it (docs/LoaderDriverInterface.md and
//! LoaderLayerInterface.md of Vulkan-Loader).

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// An environment, so that tests can have another one.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Variables whose drivers take the place of those found in folders, the strongest first.
pub(crate) const REPLACING: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
/// The variable whose drivers come before those found in folders.
pub(crate) const ADDING: &str = "VK_ADD_DRIVER_FILES";
/// Variables by which the loader leaves drivers out.
pub(crate) const FILTERS: [&str; 2] = ["VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE"];

/// A place where the loader looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// A manifest, or a folder of them.
    pub(crate) path: PathBuf,
    /// The variable that names it.
    pub(crate) named_by: Option<&'static str>,
}

/// The places where the loader looks for drivers.
pub(crate) fn driver_places(environment: Environment<'_>) -> Vec<Place> {
    let listed = |name: &'static str| -> Vec<Place> {
        let value = environment(name).filter(|value| !value.is_empty());
        let paths = value.iter().flat_map(std::env::split_paths).filter(|path| !path.as_os_str().is_empty());
        paths.map(|path| Place { path, named_by: Some(name) }).collect()
    };
    let replacing = REPLACING.into_iter().map(listed).find(|places| !places.is_empty());
    if let Some(places) = replacing {
        return places;
    }
    let mut places = listed(ADDING);
    places.extend(folders("icd.d", environment).into_iter().map(|path| Place { path, named_by: None }));
    places
}

/// The folders called `vulkan/NAME` in which the loader looks, in its order.
pub(crate) fn folders(name: &str, environment: Environment<'_>) -> Vec<PathBuf> {
    let home = environment("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let one = |variable: &str, below_home: &str| -> Vec<PathBuf> {
        let set = environment(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        set.or_else(|| home.as_ref().map(|home| home.join(below_home))).into_iter().collect()
    };
    let list = |variable: &str, default: &str| -> Vec<PathBuf> {
        let value = environment(variable).filter(|value| !value.is_empty());
        std::env::split_paths(&value.unwrap_or_else(|| default.into())).collect()
    };
    let bases = [
        one("XDG_CONFIG_HOME", ".config"),
        list("XDG_CONFIG_DIRS", "/etc/xdg"),
        vec!["/usr/local/etc".into(), "/etc".into()],
        one("XDG_DATA_HOME", ".local/share"),
        list("XDG_DATA_DIRS", "/usr/local/share:/usr/share"),
    ];
    let mut seen = HashSet::new();
    let all = bases.into_iter().flatten().filter(|base| base.is_absolute());
    all.map(|base| base.join("vulkan").join(name)).filter(|path| seen.insert(path.clone())).collect()
}

/// The manifests at a place: itself, or the `.json` files of a folder, by name.
pub(crate) fn manifests(place: &Path) -> Vec<PathBuf> {
    if !place.is_dir() {
        return vec![place.to_owned()];
    }
    let files = std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    files.sort();
    files
}

/// What a driver's manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The library: a path, or a name for the system's search.
    pub(crate) library: PathBuf,
    /// The version of Vulkan that it claims, as text.
    pub(crate) api_version: String,
}

/// No manifest is longer.
const MOST_BYTES: u64 = 1 << 20;

impl Manifest {
    /// Reads a driver's manifest.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub(crate) fn read(path: &Path) -> Result<Manifest, String> {
        let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if metadata.len() > MOST_BYTES {
            return Err(format!("it has {} bytes, which no manifest has", metadata.len()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let json: Value = serde_json::from_str(&text).map_err(|error| format!("it is no JSON: {error}"))?;
        let icd = json.get("ICD").ok_or("it has no object `ICD`")?;
        let library = icd.get("library_path").and_then(Value::as_str);
        let library = library.ok_or("its `ICD` has no string `library_path`")?;
        let api_version = icd.get("api_version").and_then(Value::as_str).unwrap_or("not given");
        // A path with a slash is relative to the manifest; a bare name is searched for as any library is.
        let library = match path.parent() {
            Some(folder) if library.contains('/') => folder.join(library),
            _ => PathBuf::from(library),
        };
        Ok(Manifest { library, api_version: api_version.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    }

    #[test]
    fn folders_are_the_loaders() {
        let plain = folders("icd.d", &environment(&[("HOME", "/home/me")]));
        let expected = [
            "/home/me/.config/vulkan/icd.d",
            "/etc/xdg/vulkan/icd.d",
            "/usr/local/etc/vulkan/icd.d",
            "/etc/vulkan/icd.d",
            "/home/me/.local/share/vulkan/icd.d",
            "/usr/local/share/vulkan/icd.d",
            "/usr/share/vulkan/icd.d",
        ];
        assert_eq!(plain, expected.map(PathBuf::from));
        let set = folders("icd.d", &environment(&[("XDG_DATA_DIRS", "/opt/share:/usr/share:relative")]));
        assert!(set.contains(&"/opt/share/vulkan/icd.d".into()) && set.iter().all(|path| path.is_absolute()));
    }

    #[test]
    fn variables_replace_or_add() {
        let one =
            driver_places(&environment(&[("VK_DRIVER_FILES", "/a.json:/b"), ("VK_ICD_FILENAMES", "/c")]));
        let names: Vec<_> = one.iter().map(|place| (place.path.to_str().unwrap(), place.named_by)).collect();
        assert_eq!(names, [("/a.json", Some("VK_DRIVER_FILES")), ("/b", Some("VK_DRIVER_FILES"))]);
        let old = driver_places(&environment(&[("VK_DRIVER_FILES", ""), ("VK_ICD_FILENAMES", "/c")]));
        assert_eq!(old[0].named_by, Some("VK_ICD_FILENAMES"));
        let added = driver_places(&environment(&[("VK_ADD_DRIVER_FILES", "/d.json")]));
        assert_eq!(added[0].named_by, Some("VK_ADD_DRIVER_FILES"));
        assert!(added.len() > 1 && added[1].named_by.is_none());
    }

    #[test]
    fn a_manifest_says_what_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("driver.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Manifest::read(&path)
        };
        assert!(Manifest::read(&path).unwrap_err().contains("No such file"));
        assert!(read("{").unwrap_err().contains("no JSON"));
        assert!(read("[]").unwrap_err().contains("no object `ICD`"));
        assert!(read(r#"{"ICD": {"library_path": 7}}"#).unwrap_err().contains("library_path"));
        assert!(read(&"[".repeat(100_000)).unwrap_err().contains("no JSON"));
        let relative = read(r#"{"ICD": {"library_path": "./lib/a.so", "api_version": "1.3.2"}}"#).unwrap();
        assert_eq!(relative.library, folder.path().join("./lib/a.so"));
        let bare = read(r#"{"ICD": {"library_path": "libvulkan_lvp.so"}}"#).unwrap();
        assert_eq!(bare.library, PathBuf::from("libvulkan_lvp.so"));
    }
}
