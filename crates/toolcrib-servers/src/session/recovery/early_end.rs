//! The end of a server in its first seconds: it may be that it was forked from a template and is not what an ordinary start
//! would be.

use std::{os::unix::process::ExitStatusExt as _, sync::Arc, time::Duration};

use crate::{
    process::{ExitWatch, describe},
    session::{
        Session,
        connect::{
            Connection,
            failure::{EXIT_LAG, seconds},
            templating::ForkPlan,
        },
        settings::Settings,
    },
};

/// Seconds of a server that count as its first ones.
const EARLY: Duration = Duration::from_secs(10);
/// Signals that others send to a server, and that say nothing of its start: HUP, INT, KILL, TERM.
const FROM_OTHERS: [i32; 4] = [1, 2, 9, 15];

/// A server that was lost in its first seconds. It is judged at the latest when this is dropped, by its exit status if that is known.
pub(in crate::session) struct EarlyEnd {
    settings: Arc<Settings>,
    plan: ForkPlan,
    is_forked: bool,
    after: Duration,
    exit: ExitWatch,
    is_judged: bool,
}

impl EarlyEnd {
    /// `None`: the connection stands, has stood for long, or could not have been forked.
    pub(in crate::session) fn of(session: &Session, connection: &Connection) -> Option<Self> {
        let Connection { planned, process, is_forked, since, link, .. } = connection;
        let (after, is_lost) = (since.elapsed(), link.client().is_ended());
        let (plan, _) = planned.as_ref().filter(|_| is_lost && after < EARLY)?;
        let exit = process.as_ref()?.exit_watch();
        let (settings, plan) = (session.settings(), plan.clone());
        Some(Self { settings, plan, is_forked: *is_forked, after, exit, is_judged: false })
    }

    /// Judges it once its exit status is known, or does not come. To be called before its process is ended.
    pub(in crate::session) async fn judge(mut self) {
        self.exit.within(EXIT_LAG).await;
        self.judge_now();
    }

    fn judge_now(&mut self) {
        if std::mem::replace(&mut self.is_judged, true) {
            return;
        }
        let Some(status) = self.exit.status() else { return };
        if status.signal().is_some_and(|signal| FROM_OTHERS.contains(&signal)) {
            return;
        }
        let how = describe(status);
        let reason = format!("it {how} {} after it was ready", seconds(self.after));
        let Settings { config, connect_context, .. } = &*self.settings;
        self.plan.ended_early(self.is_forked, (&how, &reason), config, connect_context);
    }
}

impl Drop for EarlyEnd {
    fn drop(&mut self) {
        self.judge_now();
    }
}
