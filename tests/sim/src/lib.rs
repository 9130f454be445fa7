//! A backend around a backend that simulates what no driver at hand has.
