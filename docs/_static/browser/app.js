"use strict";
// Loads the model of this folder, and lets it write letter by letter.

const LETTERS = 2000; // of a text
const FORMS = ["exact", "plain"];
const at = (id) => document.getElementById(id);

async function fetched(name, kind) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  return answer[kind]();
}

/** A model: `read(letter)` takes a byte and returns the scores of the next one. */
class Model {
  constructor(instance, weights, facts) {
    const own = instance.exports, buffer = own.memory.buffer;
    const embedding = Uint8Array.from(atob(facts.embedding), (one) => one.charCodeAt(0));
    this.embedding = new Float32Array(embedding.buffer);
    this.alphabet = facts.alphabet;
    this.classOf = new Map(facts.alphabet.map((letter, number) => [letter, number]));
    this.size = this.embedding.length / (facts.alphabet.length + 1); // one class more, of all other bytes
    this.own = own;
    new Uint8Array(buffer, own.weights_at(), weights.byteLength).set(new Uint8Array(weights));
    this.x = new Float32Array(buffer, own.x_at(), this.size);
    this.y = new Float32Array(buffer, own.y_at(), facts.alphabet.length);
    this.begin();
  }

  begin() {
    if (this.own.begin()) throw new Error("letters.bin is of another network");
  }

  read(letter) {
    const number = this.classOf.get(letter) ?? this.alphabet.length;
    this.x.set(this.embedding.subarray(number * this.size, (number + 1) * this.size));
    this.own.step();
    return this.y;
  }

  /** A sample of the softmax of the scores (the Gumbel-max trick); at temperature 0 the likeliest letter. */
  drawn(scores, temperature, random) {
    let best = 0, most = -Infinity;
    for (let number = 0; number < scores.length; number++) {
      const noise = temperature > 0 ? -Math.log(-Math.log(random())) : 0;
      const value = scores[number] + temperature * noise;
      if (value > most) [best, most] = [number, value];
    }
    return this.alphabet[best];
  }
}

/** Numbers above 0 and below 1, the same for each seed (Mulberry32). */
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
}

/** Yields the bytes that continue a prompt. */
function* text(model, prompt, temperature, seed) {
  const random = generator(seed);
  model.begin();
  let scores;
  for (const letter of prompt) scores = model.read(letter);
  for (;;) {
    const letter = model.drawn(scores, temperature, random);
    yield letter;
    scores = model.read(letter);
  }
}

async function main() {
  const [weights, facts, ...code] = await Promise.all([
    fetched("letters.bin", "arrayBuffer"), fetched("letters.json", "json"),
    ...FORMS.map((form) => fetched(`letters-${form}.wasm`, "arrayBuffer")),
  ]);
  const models = {};
  for (const [number, form] of FORMS.entries()) {
    const { instance } = await WebAssembly.instantiate(code[number]);
    models[form] = new Model(instance, weights, facts);
  }
  let run = 0;
  const asked = new URLSearchParams(location.search);
  if (asked.has("temperature")) at("temperature").value = at("shown").value = asked.get("temperature");
  if (asked.has("prompt")) at("prompt").value = asked.get("prompt");

  function start() {
    const own = ++run, form = document.querySelector("input[name=form]:checked").value;
    const prompt = new TextEncoder().encode(at("prompt").value || " "), temperature = Number(at("temperature").value);
    const letters = text(models[form], prompt, temperature, asked.has("seed") ? Number(asked.get("seed")) : Date.now());
    const decoder = new TextDecoder(), shown = at("text");
    let count = 0, seconds = 0;
    shown.replaceChildren(Object.assign(document.createElement("b"), { textContent: at("prompt").value || " " }));
    shown.append("");
    function some() {
      if (own !== run || count >= LETTERS) {
        if (own === run) document.body.dataset.done = form;
        return;
      }
      const begin = performance.now(), found = [];
      while (performance.now() - begin < 12 && count + found.length < LETTERS) found.push(letters.next().value);
      seconds += (performance.now() - begin) / 1000;
      count += found.length;
      shown.lastChild.data += decoder.decode(Uint8Array.from(found), { stream: true });
      if (seconds > 0) at("speed").value = `${Math.round(count / seconds).toLocaleString("en")} letters a second, `
        + `${(facts.weights * count / seconds / 1e6).toFixed(0)} million weights a second`;
      requestAnimationFrame(some);
    }
    some();
  }

  /** How far both forms write the same, at temperature 0. */
  function agreement() {
    const prompt = new TextEncoder().encode(at("prompt").value || " ");
    const both = FORMS.map((form) => text(models[form], prompt, 0, 0));
    let count = 0;
    while (count < 500 && both[0].next().value === both[1].next().value) count++;
    const same = count < 500 ? `the first ${count} letters` : "500 letters and more";
    at("agreement").value = `At temperature 0, exact and plain write the same: ${same}.`;
  }

  at("temperature").addEventListener("input", () => { at("shown").value = at("temperature").value; });
  at("form").addEventListener("submit", (event) => { event.preventDefault(); start(); });
  at("stop").addEventListener("click", () => { run++; });
  at("start").disabled = false; // a form that nobody listens to would load the page again
  agreement();
  start();
}

main().catch((error) => { at("text").textContent = `The model cannot be loaded: ${error.message}`; });
