"use strict";
// The language switch, and the heat maps. Text is only ever set as text, never as markup.
(() => {
  const root = document.documentElement;
  const levels = 254, off = 255;
  const chinese = () => root.lang === "zh";
  const maps = [];

  function speak(lang) {
    root.lang = lang;
    document.title = lang === "zh" ? root.dataset.titleZh : root.dataset.titleEn;
    for (const button of document.querySelectorAll(".languages button")) {
      button.setAttribute("aria-pressed", String(button.dataset.lang === lang));
    }
    for (const map of maps) map.describe();
  }

  function fromAddress() {
    const asked = location.hash.slice(1);
    speak(asked === "zh" || asked === "en" ? asked : root.lang);
  }

  function color(name) {
    const text = getComputedStyle(root).getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  }

  class Map {
    constructor(figure) {
      const data = JSON.parse(figure.querySelector("script").textContent);
      this.rows = data.rows;
      this.columns = data.columns;
      this.title = data.title;
      this.bytes = Uint8Array.from(atob(data.weights), (c) => c.charCodeAt(0));
      this.canvas = figure.querySelector("canvas");
      this.output = figure.querySelector("output");
      this.at = null;
      this.measure();
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerdown", (event) => this.point(event));
      this.canvas.addEventListener("keydown", (event) => this.step(event));
      this.draw();
    }

    measure() {
      const [rows, columns] = [this.rows.length, this.columns.length];
      const most = Math.max(rows, columns, 1);
      this.cell = Math.max(1, Math.min(28, Math.floor(640 / most)));
      this.named = this.cell >= 12;
      const pen = this.canvas.getContext("2d");
      pen.font = this.font();
      const widest = (labels) => Math.max(0, ...labels.map((l) => pen.measureText(this.short(l)).width));
      this.left = this.named ? Math.ceil(widest(this.rows)) + 8 : 0;
      this.top = this.named ? Math.ceil(widest(this.columns)) + 8 : 0;
      this.width = this.left + columns * this.cell;
      this.height = this.top + rows * this.cell;
    }

    font() {
      return `${Math.min(13, this.cell - 1)}px system-ui, "Noto Sans CJK SC", sans-serif`;
    }

    short(label) {
      const letters = Array.from(label);
      return letters.length > 12 ? letters.slice(0, 11).join("") + "…" : label;
    }

    draw() {
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.max(1, Math.round(this.width * ratio));
      this.canvas.height = Math.max(1, Math.round(this.height * ratio));
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.height}px`;
      const pen = this.canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.cells(pen);
      if (this.named) this.labels(pen);
      if (this.at) this.frame(pen);
    }

    cells(pen) {
      const [rows, columns] = [this.rows.length, this.columns.length];
      if (!rows || !columns) return;
      const [low, high, none] = ["--heat-low", "--heat-high", "--heat-off"].map(color);
      const picture = new ImageData(columns, rows);
      this.bytes.forEach((level, i) => {
        const share = level / levels;
        const mix = level === off ? none : low.map((c, j) => Math.round(c + (high[j] - c) * share));
        picture.data.set([...mix, 255], 4 * i);
      });
      const small = new OffscreenCanvas(columns, rows);
      small.getContext("2d").putImageData(picture, 0, 0);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(small, this.left, this.top, columns * this.cell, rows * this.cell);
    }

    labels(pen) {
      pen.font = this.font();
      pen.fillStyle = getComputedStyle(root).getPropertyValue("--ink");
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      this.rows.forEach((label, i) => {
        pen.fillText(this.short(label), this.left - 5, this.top + (i + 0.5) * this.cell);
      });
      pen.textAlign = "left";
      this.columns.forEach((label, j) => {
        pen.save();
        pen.translate(this.left + (j + 0.5) * this.cell, this.top - 5);
        pen.rotate(-Math.PI / 2);
        pen.fillText(this.short(label), 0, 0);
        pen.restore();
      });
    }

    frame(pen) {
      const [row, column] = this.at;
      const side = Math.max(this.cell, 3);
      pen.lineWidth = 2;
      pen.strokeStyle = getComputedStyle(root).getPropertyValue("--bad");
      pen.strokeRect(this.left + column * this.cell, this.top + row * this.cell, side, side);
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      this.move(
        Math.floor((event.clientY - box.top - this.top) / this.cell),
        Math.floor((event.clientX - box.left - this.left) / this.cell),
      );
    }

    step(event) {
      const way = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!way) return;
      event.preventDefault();
      if (this.at) this.move(this.at[0] + way[0], this.at[1] + way[1]);
      else this.move(0, 0);
    }

    move(row, column) {
      const inside = row >= 0 && column >= 0 && row < this.rows.length && column < this.columns.length;
      if (!inside) return;
      this.at = [row, column];
      this.draw();
      this.describe();
    }

    describe() {
      this.canvas.setAttribute("aria-label", chinese() ? this.title.zh : this.title.en);
      this.output.textContent = this.at ? this.reading() : this.invitation();
    }

    invitation() {
      return chinese()
        ? "行是查询，列是键；移动鼠标，或用方向键，读出每个权重"
        : "rows are queries, columns are keys; point, or use the arrow keys, to read a weight";
    }

    reading() {
      const [row, column] = this.at;
      const level = this.bytes[row * this.columns.length + column];
      const share = (level / levels) ** 2;
      const weight = level === off ? (chinese() ? "不允许" : "not allowed") : `≈ ${share.toPrecision(2)}`;
      return chinese()
        ? `查询 ${row}“${this.rows[row]}” → 键 ${column}“${this.columns[column]}”：${weight}`
        : `query ${row} “${this.rows[row]}” → key ${column} “${this.columns[column]}”: ${weight}`;
    }
  }

  for (const button of document.querySelectorAll(".languages button")) {
    button.addEventListener("click", () => {
      history.replaceState(null, "", `#${button.dataset.lang}`);
      speak(button.dataset.lang);
    });
  }
  for (const figure of document.querySelectorAll("figure.heat")) maps.push(new Map(figure));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const map of maps) map.draw();
  });
  addEventListener("hashchange", fromAddress);
  fromAddress();
})();
