//! The keywords of JSON Schema, and what each may be.

/// The form that the value of a keyword must have.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Schema,
    Schemas,
    /// Schemas by the names of properties.
    Named,
    /// Schemas by patterns.
    ByPattern,
    Types,
    List,
    /// One that has entries.
    Choices,
    /// Each text once.
    Texts,
    /// Lists of texts, by names.
    NamedTexts,
    /// Lists of texts or schemas, by names.
    Dependencies,
    Number,
    Positive,
    Count,
    Bool,
    Text,
    /// The draft that a schema is written in.
    Dialect,
    Pattern,
    /// The name of a place.
    Anchor,
    Id,
    /// An object with any members.
    Object,
}

/// `None`: not a keyword of the meta-schema, or one that may be anything.
pub(super) fn kind(keyword: &str) -> Option<Kind> {
    Some(match keyword {
        "additionalProperties"
        | "unevaluatedProperties"
        | "unevaluatedItems"
        | "items"
        | "contains"
        | "not"
        | "if"
        | "then"
        | "else"
        | "propertyNames"
        | "contentSchema" => Kind::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Kind::Schemas,
        "properties" | "$defs" | "definitions" | "dependentSchemas" => Kind::Named,
        "patternProperties" => Kind::ByPattern,
        "type" => Kind::Types,
        "enum" => Kind::Choices,
        "examples" => Kind::List,
        "required" => Kind::Texts,
        "dependentRequired" => Kind::NamedTexts,
        "dependencies" => Kind::Dependencies,
        "maximum" | "minimum" | "exclusiveMaximum" | "exclusiveMinimum" => Kind::Number,
        "multipleOf" => Kind::Positive,
        "maxLength" | "minLength" | "maxItems" | "minItems" | "maxContains" | "minContains"
        | "maxProperties" | "minProperties" => Kind::Count,
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => Kind::Bool,
        "title" | "description" | "format" | "contentEncoding" | "contentMediaType" | "$comment" | "$ref"
        | "$dynamicRef" | "$recursiveRef" => Kind::Text,
        "$schema" => Kind::Dialect,
        "pattern" => Kind::Pattern,
        "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" => Kind::Anchor,
        "$id" => Kind::Id,
        "$vocabulary" => Kind::Object,
        _ => return None,
    })
}

/// The form that a keyword of this kind must have, in words.
pub(super) fn wanted(kind: Kind) -> &'static str {
    match kind {
        Kind::Schema => "a schema",
        Kind::Schemas => "a list of schemas",
        Kind::Named | Kind::ByPattern | Kind::NamedTexts | Kind::Dependencies | Kind::Object => "an object",
        Kind::Types => "the name of a type, or a list of them",
        Kind::List => "a list",
        Kind::Choices => "a list with entries",
        Kind::Texts => "a list of texts",
        Kind::Number => "a number",
        Kind::Positive => "a number above 0",
        Kind::Count => "a whole number from 0",
        Kind::Bool => "true or false",
        Kind::Text => "a text",
        Kind::Dialect => "a published draft of JSON Schema",
        Kind::Pattern => "a regular expression that can be compiled",
        Kind::Anchor => "a name",
        Kind::Id => "a URI without a fragment",
    }
}

/// A published draft of JSON Schema, as the value of `$schema` that libraries of clients know; `""` for one that many of them
/// do not. `None`: none of these.
pub(super) fn draft(dialect: &str) -> Option<&'static str> {
    let at = dialect.strip_prefix("https://").or_else(|| dialect.strip_prefix("http://"))?;
    Some(match at.strip_suffix('#').unwrap_or(at) {
        "json-schema.org/draft/2020-12/schema" => "https://json-schema.org/draft/2020-12/schema",
        "json-schema.org/draft-07/schema" => "http://json-schema.org/draft-07/schema#",
        "json-schema.org/schema"
        | "json-schema.org/draft-00/schema"
        | "json-schema.org/draft-01/schema"
        | "json-schema.org/draft-02/schema"
        | "json-schema.org/draft-03/schema"
        | "json-schema.org/draft-04/schema"
        | "json-schema.org/draft-05/schema"
        | "json-schema.org/draft-06/schema"
        | "json-schema.org/draft/2019-09/schema" => "",
        _ => return None,
    })
}
