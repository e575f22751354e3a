use std::path::Path;

use grpcxx::model::SafetensorsWriter;
use grpcxx_rpc::{Code, DType, Shape, Status, Tensor, TensorMeta};

use crate::terminal::Outcome;

/// Writes a model with the names and sizes of all-MiniLM-L6-v2 (90.9 MB) and numbers made up by a
/// fixed rule.
pub(crate) fn generate(path: &Path) -> Outcome {
    let mut described = Vec::new();
    for (name, dims) in layout() {
        let shape =
            Shape::new(&dims).map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let meta = TensorMeta {
            dtype: DType::Float32,
            data_bytes: shape.num_elements() * 4,
            shape,
            is_dead: false,
        };
        described.push((name, meta));
    }
    let tensors = described.iter().map(|(name, meta)| (name.as_str(), meta));
    let mut writer = SafetensorsWriter::create(path, tensors, &[])?;
    let mut state = 1u32;
    for (name, meta) in &described {
        let mut data = Vec::with_capacity(meta.data_bytes as usize);
        for _ in 0..meta.shape.num_elements() {
            // A linear congruential generator, whose upper bits become numbers from -1 to 1.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
            data.extend(value.to_le_bytes());
        }
        let tensor = Tensor::new(meta.dtype, meta.shape.clone(), data)?;
        writer.write(name, &tensor)?;
    }
    Ok(writer.finish()?)
}

/// The tensors of a BERT encoder with 6 layers of 384.
fn layout() -> Vec<(String, Vec<u64>)> {
    let mut tensors = vec![
        (
            "embeddings.word_embeddings.weight".to_owned(),
            vec![30_522, HIDDEN],
        ),
        (
            "embeddings.position_embeddings.weight".to_owned(),
            vec![512, HIDDEN],
        ),
        (
            "embeddings.token_type_embeddings.weight".to_owned(),
            vec![2, HIDDEN],
        ),
    ];
    let mut pair = |name: String, rows: u64, columns: Option<u64>| {
        let weight = columns.map_or_else(|| vec![rows], |columns| vec![rows, columns]);
        tensors.push((format!("{name}.weight"), weight));
        tensors.push((format!("{name}.bias"), vec![rows]));
    };
    pair("embeddings.LayerNorm".to_owned(), HIDDEN, None);
    for layer in 0..6 {
        let part = |name: &str| format!("encoder.layer.{layer}.{name}");
        for name in ["query", "key", "value"] {
            pair(
                part(&format!("attention.self.{name}")),
                HIDDEN,
                Some(HIDDEN),
            );
        }
        pair(part("attention.output.dense"), HIDDEN, Some(HIDDEN));
        pair(part("attention.output.LayerNorm"), HIDDEN, None);
        pair(part("intermediate.dense"), INNER, Some(HIDDEN));
        pair(part("output.dense"), HIDDEN, Some(INNER));
        pair(part("output.LayerNorm"), HIDDEN, None);
    }
    pair("pooler.dense".to_owned(), HIDDEN, Some(HIDDEN));
    tensors
}

const HIDDEN: u64 = 384;
const INNER: u64 = 1536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_has_the_size_of_the_real_model() {
        let elements: u64 = layout()
            .iter()
            .map(|(_, dims)| dims.iter().product::<u64>())
            .sum();
        assert_eq!(layout().len(), 103);
        assert_eq!(elements * 4, 90_852_864);
    }
}
