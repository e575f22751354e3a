//! Files of models that the command line names.

use std::path::Path;

use grpcxx::model::Model;

use super::Outcome;

/// Opens files of a model, and warns of each tensor that is left out for its type.
pub(crate) fn open_model<P: AsRef<Path>>(paths: &[P]) -> Outcome<Model> {
    let model = Model::open(paths)?;
    for line in model.skipped_lines() {
        tracing::warn!("{line}");
    }
    Ok(model)
}
