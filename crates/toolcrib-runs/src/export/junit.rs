//! JUnit XML, as `toolcrib run --junit` writes it.

use std::io::Write;

use super::{ExportSummary, output, run_reader::RunReader};
use crate::{error::Result, report::RunSuite};

pub(super) fn write(run: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
    let (mut suite, mut summary) = (RunSuite::default(), ExportSummary::default());
    run.each_task(|task| {
        summary.tasks += 1;
        suite.add(&task.report);
        Ok(())
    })?;
    suite.write(out).map_err(output::failed)?;
    Ok(summary)
}
