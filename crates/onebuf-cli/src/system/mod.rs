//! What the machine says of itself, whatever devices it has.

mod container;
mod host;
mod vulkan_files;

pub(crate) use container::signs;
pub(crate) use host::host;
pub(crate) use vulkan_files::{
    ADDING, Environment, FILTERS, Manifest, REPLACING, driver_places, folders, manifests,
};
