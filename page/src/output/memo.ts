// Draws a component again only when one of its properties is another one.

import { Component, h, type FunctionComponent } from "preact";

export function memo<P extends object>(inner: FunctionComponent<P>): FunctionComponent<P> {
  class Memo extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      return (Object.keys(next) as (keyof P)[]).some((name) => next[name] !== this.props[name]);
    }
    override render() {
      return h(inner, this.props as P);
    }
  }
  return Memo as unknown as FunctionComponent<P>;
}
