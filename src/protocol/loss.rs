//! The two typed transitions to `lost`, each opened by a transaction setting that names it exactly.

use super::json::{Json, Kind};

/// Lost because the provider said it never started.
pub const REJECTED: &[u8] = b"provider_start_rejected";
/// Lost together with the provider instance.
pub const INSTANCE_LOST: &[u8] = b"provider_instance_lost";

/// What a member of a binding has to equal. `Null` stands for a column that is NULL: jsonb_build_object
/// writes JSON null for it.
pub enum Expected<'a, J> {
    String(&'a [u8]),
    Number(i64),
    Json(J),
    Null,
}

/// `binding = jsonb_build_object(members…)`; a NULL binding equals nothing.
pub fn binds<J: Json>(binding: Option<J>, members: &[(&str, Expected<'_, J>)]) -> bool {
    let Some(binding) = binding else {
        return false;
    };
    let mut count = 0usize;
    binding.kind() == Kind::Object
        && binding.every_member(|_, _| {
            count += 1;
            true
        })
        && count == members.len()
        && members.iter().all(|(key, expected)| {
            binding.get(key).is_some_and(|value| match expected {
                Expected::String(text) => value.is_string(text),
                Expected::Number(n) => value.is_number(*n),
                Expected::Json(json) => value.same(*json),
                Expected::Null => value.kind() == Kind::Null,
            })
        })
}
