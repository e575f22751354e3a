"""Trains by Model.fit and by loops with tf.GradientTape, and prints the losses. It knows of one process.

    parallel_train.py BATCH FOLDER
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf

BATCH, FOLDER = int(sys.argv[1]), sys.argv[2]
print("a line of every rank")
tf.keras.utils.set_random_seed(7)
random = np.random.RandomState(3)
x = random.randn(256, 12).astype(np.float32)
y = (x @ random.randn(12, 1) + 0.1 * random.randn(256, 1)).astype(np.float32)


def model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((12,)),
            tf.keras.layers.Dense(32, activation="tanh"),
            tf.keras.layers.BatchNormalization(trainable=False),
            tf.keras.layers.Dense(1),
        ]
    )


fitted = model()
fitted.compile(tf.keras.optimizers.Adam(0.01), "mse")
# Were it written by every rank, there would be a file for each.
log = next(path for path in (f"{FOLDER}/log-{at}.csv" for at in range(9)) if not os.path.exists(path))
history = fitted.fit(
    x,
    y,
    batch_size=BATCH,
    epochs=3,
    validation_split=0.25,
    callbacks=[tf.keras.callbacks.CSVLogger(log)],
    verbose=0,
).history
fitted.save_weights(f"{FOLDER}/last.weights.h5")

looped = model()
optimizer = tf.keras.optimizers.SGD(0.05)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256).batch(BATCH)


@tf.function
def step(features, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(looped(features, training=True) - labels))
    gradients = tape.gradient(loss, looped.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, looped.trainable_variables))
    return loss


steps = 0
for _ in range(3):
    for features, labels in data:
        step(features, labels)
        steps += 1
count = sum(1 for _ in data)
whole = float(tf.reduce_mean(tf.square(looped(x) - y)))
eager = tf.Variable(tf.ones([12, 1]))
for features, labels in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(features @ eager - labels))
    eager.assign_sub(0.05 * tape.gradient(loss, eager))
found = {"fit": history, "loop": whole, "steps": steps, "count": count, "eager": eager.numpy().ravel().tolist()}
print(json.dumps(found))
