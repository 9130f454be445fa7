//! Limits are checked before a driver sees them: each check names the quantity, what was asked and what is allowed.
