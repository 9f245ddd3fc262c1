//! Translates the dates in Google's `tbs` argument for engines with other arguments.

use jiff::{Span, Timestamp, civil::Date};

/// A span of time that results are to be from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dates {
    /// The last so many units.
    Last(Unit, u16),
    /// The days from one to another, either of which may be open.
    Between(Option<Date>, Option<Date>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Dates {
    /// Reads `qdr:w`, `qdr:m3` or `cdr:1,cd_min:1/31/2024,cd_max:2/29/2024`; anything else is no date.
    pub(super) fn parse(tbs: &str) -> Option<Self> {
        if let Some(span) = tbs.strip_prefix("qdr:") {
            let unit = match span.chars().next()? {
                'h' => Unit::Hour,
                'd' => Unit::Day,
                'w' => Unit::Week,
                'm' => Unit::Month,
                'y' => Unit::Year,
                _ => return None,
            };
            let number = match &span[1..] {
                "" => 1,
                number => number.parse().ok()?,
            };
            return Some(Self::Last(unit, number));
        }
        let parts: Vec<&str> = tbs.strip_prefix("cdr:1,")?.split(',').collect();
        let (mut from, mut to) = (None, None);
        for part in parts {
            let (name, date) = part.split_once(':')?;
            match name {
                "cd_min" => from = Some(Date::strptime("%m/%d/%Y", date).ok()?),
                "cd_max" => to = Some(Date::strptime("%m/%d/%Y", date).ok()?),
                _ => return None,
            }
        }
        (from.is_some() || to.is_some()).then_some(Self::Between(from, to))
    }

    /// First and last moment, seen from `now`.
    pub(super) fn bounds(self, now: Timestamp) -> Option<(Option<Timestamp>, Option<Timestamp>)> {
        let zoned = now.to_zoned(jiff::tz::TimeZone::UTC);
        let back = |span: Span| Some((Some(zoned.checked_sub(span).ok()?.timestamp()), None));
        match self {
            Self::Last(Unit::Hour, n) => back(Span::new().try_hours(n).ok()?),
            Self::Last(Unit::Day, n) => back(Span::new().try_days(n).ok()?),
            Self::Last(Unit::Week, n) => back(Span::new().try_weeks(n).ok()?),
            Self::Last(Unit::Month, n) => back(Span::new().try_months(n).ok()?),
            Self::Last(Unit::Year, n) => back(Span::new().try_years(n).ok()?),
            Self::Between(from, to) => {
                let at = |date: Date, hour, minute, second| {
                    let moment = date.at(hour, minute, second, 0).to_zoned(jiff::tz::TimeZone::UTC).ok()?;
                    Some(moment.timestamp())
                };
                let from = from.map(|date| at(date, 0, 0, 0));
                let to = to.map(|date| at(date, 23, 59, 59));
                Some((from.flatten(), to.flatten()))
            }
        }
    }
}
