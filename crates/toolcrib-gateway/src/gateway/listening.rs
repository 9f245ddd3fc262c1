//! Changes of lists and of resources that clients have asked to be told of.

use serde_json::value::RawValue;

use super::{hello::meta_key, message, outlet::Outlet};
use crate::json_rpc::RawObject;

/// An open `subscriptions/listen` of a client of the new era.
pub(super) struct Listening {
    pub(super) id: Box<RawValue>,
    /// Key by which the request is known: ids of several callers may be the same.
    pub(super) key: Box<str>,
    pub(super) filter: ListenFilter,
    pub(super) outlet: Outlet,
}

/// The changes that a client wants to be told of.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(clippy::struct_field_names, reason = "the protocol's own names")]
pub(super) struct ListenFilter {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) tools_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) prompts_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) resources_list_changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) resource_subscriptions: Vec<String>,
}

impl Listening {
    /// Sends a notification as one of this subscription.
    pub(super) fn tell(&self, method: &str, mut params: RawObject) {
        let mut meta = RawObject::parse(params.take("_meta").as_deref()).unwrap_or_default();
        meta.set(meta_key::SUBSCRIPTION, self.id.clone());
        params.set("_meta", meta.into_raw());
        self.outlet.send(message::notification(method, Some(&params.into_raw())));
    }
}

/// A list that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangedList {
    Tools,
    Prompts,
    Resources,
}

impl ChangedList {
    pub(super) fn of(method: &str) -> Option<Self> {
        [Self::Tools, Self::Prompts, Self::Resources].into_iter().find(|list| list.method() == method)
    }

    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
        }
    }

    pub(super) fn is_wanted(self, filter: &ListenFilter) -> bool {
        match self {
            Self::Tools => filter.tools_list_changed,
            Self::Prompts => filter.prompts_list_changed,
            Self::Resources => filter.resources_list_changed,
        }
    }
}
