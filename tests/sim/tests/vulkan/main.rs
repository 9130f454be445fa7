//! onebuf on simulated devices, whose work runs on a real Vulkan driver.
//!
//! Without a Vulkan device the tests say so and do nothing, unless `ONEBUF_REQUIRE` names `vulkan`.

mod failures;
mod limits;
mod memory;
mod schedules;

use std::sync::Arc;

use onebuf::{Device, Registry};
use onebuf_sim::{Control, Options, Simulated};
use onebuf_vulkan::{Vulkan, VulkanOptions};

/// A simulated device, with the notes of everyone who watches.
struct World {
    device: Device,
    control: Arc<Control>,
    vulkan: Arc<Vulkan>,
}

impl World {
    /// `None` where there is no Vulkan device to run on.
    fn new(options: Options) -> Option<World> {
        let vulkan = match Vulkan::new(VulkanOptions::from_env()) {
            Ok(vulkan) => Arc::new(vulkan),
            Err(error) => return World::skip(&error.to_string()),
        };
        let simulated = Simulated::new(vulkan.clone(), options);
        let control = simulated.control();
        match Registry::with(vec![Arc::new(simulated)]).open_default() {
            Ok(device) => Some(World { device, control, vulkan }),
            Err(error) => World::skip(&error.to_string()),
        }
    }

    fn skip(why: &str) -> Option<World> {
        let required = std::env::var("ONEBUF_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == "vulkan"), "a Vulkan device is required: {why}");
        #[allow(clippy::print_stderr)] // A skip must be seen.
        {
            eprintln!("skipped: {why}");
        }
        None
    }

    /// Nothing went past a limit, and the validation layer, where it is on, has nothing to say.
    fn check(&self) {
        assert_eq!(self.control.violations(), Vec::<String>::new());
        assert_eq!(self.vulkan.validation_messages(), Vec::<String>::new());
    }
}

/// Adds a number to every element.
const ADD: &str = "
    var<immediate> number: u32;
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(8) fn main(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&data) { data[at.x] += number; }
    }";
