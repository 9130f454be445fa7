//! The Vulkan loader and the instance, with the validation layer where it is asked for.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use ash::{ext, vk};
use onebuf_core::{Error, Result};
use parking_lot::Mutex;

use crate::BACKEND;

/// Name of the Khronos validation layer.
const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// How the backend starts.
#[derive(Clone, Debug, Default)]
pub struct VulkanOptions {
    /// Load the Khronos validation layer, with synchronization validation. What it says is collected in
    /// [`crate::Vulkan::validation_messages`]. The environment variable `ONEBUF_VALIDATION=1` does the same.
    pub validation: bool,
}

impl VulkanOptions {
    /// The options that the environment asks for.
    pub fn from_env() -> VulkanOptions {
        VulkanOptions {
            validation: std::env::var_os("ONEBUF_VALIDATION").is_some_and(|v| v != "0" && !v.is_empty()),
        }
    }
}

/// The messages of the validation layer, shared with its callback.
pub(crate) type Messages = Mutex<Vec<String>>;

/// A live instance. Devices keep it alive.
pub(crate) struct Instance {
    pub(crate) raw: ash::Instance,
    pub(crate) messages: Arc<Messages>,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// False for an instance that wgpu owns.
    owned: bool,
    /// Keeps the loader's library open.
    _entry: Option<ash::Entry>,
}

impl Instance {
    /// Opens the loader and makes an instance.
    pub(crate) fn new(options: &VulkanOptions) -> Result<Arc<Instance>> {
        // SAFETY: the library that is opened under the loader's well-known name is the Vulkan loader; its initialisers
        // are those of every Vulkan program.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| {
            unavailable(format!(
                "the Vulkan loader libvulkan.so.1 could not be opened ({error}); on Debian and Ubuntu: apt-get install libvulkan1"
            ))
        })?;
        // SAFETY: `entry` is loaded.
        let version =
            unsafe { entry.try_enumerate_instance_version() }.ok().flatten().unwrap_or(vk::API_VERSION_1_0);
        if version < vk::API_VERSION_1_2 {
            return Err(unavailable(format!(
                "the Vulkan loader offers {}.{}, onebuf needs 1.2; install a newer libvulkan1",
                vk::api_version_major(version),
                vk::api_version_minor(version)
            )));
        }
        let application =
            vk::ApplicationInfo::default().engine_name(c"onebuf").api_version(vk::API_VERSION_1_3);
        let mut extensions: Vec<*const c_char> = Vec::new();
        let mut layers: Vec<*const c_char> = Vec::new();
        if options.validation {
            if !has_layer(&entry)? {
                return Err(unavailable(
                    "the validation layer was asked for and is not installed; on Debian and Ubuntu: apt-get install vulkan-validationlayers".into(),
                ));
            }
            layers.push(VALIDATION_LAYER.as_ptr());
            extensions.push(ext::debug_utils::NAME.as_ptr());
        }
        let enabled = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut validation = vk::ValidationFeaturesEXT::default().enabled_validation_features(&enabled);
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions);
        if options.validation {
            info = info.push_next(&mut validation);
        }
        // SAFETY: everything `info` points to outlives the call.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|code| match code {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => unavailable(
                "the loader found no driver that it could load; `onebuf doctor` lists what it looked at. For a software driver on Debian and Ubuntu: apt-get install mesa-vulkan-drivers".into(),
            ),
            other => unavailable(format!("vkCreateInstance answered {other:?}")),
        })?;
        let messages = Arc::new(Messages::default());
        // Made whole at once, so that an error below destroys it.
        let mut instance = Instance { raw, messages, messenger: None, owned: true, _entry: None };
        if options.validation {
            let debug = ext::debug_utils::Instance::new(&entry, &instance.raw);
            let messenger = create_messenger(&debug, &instance.messages)?;
            instance.messenger = Some((debug, messenger));
        }
        instance._entry = Some(entry);
        Ok(Arc::new(instance))
    }

    /// An instance that somebody else owns and keeps alive for as long as any user of this value.
    #[cfg(feature = "wgpu")]
    pub(crate) fn borrowed(raw: ash::Instance) -> Arc<Instance> {
        let messages = Arc::new(Messages::default());
        Arc::new(Instance { raw, messages, messenger: None, owned: false, _entry: None })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold this instance alive, so no child object is left; the messenger goes before it.
        unsafe {
            if let Some((debug, messenger)) = &self.messenger {
                debug.destroy_debug_utils_messenger(*messenger, None);
            }
            if self.owned {
                self.raw.destroy_instance(None);
            }
        }
    }
}

fn unavailable(reason: String) -> Error {
    Error::BackendUnavailable { backend: BACKEND, reason }
}

fn has_layer(entry: &ash::Entry) -> Result<bool> {
    // SAFETY: `entry` is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(|code| unavailable(format!("vkEnumerateInstanceLayerProperties answered {code:?}")))?;
    Ok(layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER)))
}

fn create_messenger(
    debug: &ext::debug_utils::Instance,
    messages: &Arc<Messages>,
) -> Result<vk::DebugUtilsMessengerEXT> {
    let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::ERROR | vk::DebugUtilsMessageSeverityFlagsEXT::WARNING,
        )
        .message_type(
            vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
        )
        .pfn_user_callback(Some(collect))
        .user_data(Arc::as_ptr(messages).cast_mut().cast());
    // SAFETY: the user data is kept alive by the instance, which destroys the messenger before it drops the messages.
    unsafe { debug.create_debug_utils_messenger(&info, None) }
        .map_err(|code| unavailable(format!("vkCreateDebugUtilsMessengerEXT answered {code:?}")))
}

/// Collects a message of the validation layer.
///
/// # Safety
/// Called by the layer, with the user data that `create_messenger` gave.
unsafe extern "system" fn collect(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data, and `user` is the `Messages` that the instance keeps alive.
    let (data, messages) = unsafe { (&*data, &*user.cast::<Messages>()) };
    // SAFETY: `p_message` is null or a C string, as the specification says.
    if let Some(message) = unsafe { data.message_as_c_str() } {
        let message = message.to_string_lossy().into_owned();
        tracing::error!(target: "onebuf::validation", "{message}");
        messages.lock().push(message);
    }
    vk::FALSE
}
